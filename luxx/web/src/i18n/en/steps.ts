import { defineText, type Texts } from '../text'

const ANSWERS: Record<string, string> = { once: 'Once', always: 'Always', reject: 'Reject' }

const LOOP_ANSWERS = { stop: 'End this answer', continue: 'Continue', skip: 'Skip the call', correct: 'Correct' }

const VERDICTS = { valid: 'passed', invalid: 'not passed', unsure: 'unsure' }

const en = {
  plan: 'Plan',
  stepsEnded: (ended: number, all: number) => `${ended} of ${all} steps`,
  needs: (names: string) => `Needs: ${names}`,
  skippedBecause: (name: string) => `Left out, because ${name} has no result.`,
  thinking: 'Thinking',
  thought: 'Thought',
  thoughtFor: (duration: string) => `Thought for ${duration}`,
  interrupted: 'Interrupted; written again below',
  arguments: 'Arguments',
  output: 'Output',
  noOutput: 'No output',
  untrusted: 'From outside: this text may try to mislead the model.',
  showAll: 'Show the whole output',
  outcomes: { denied: 'Denied by a rule', rejected: 'Rejected', corrected: 'Run with changes' },
  calls: (count: number) => (count === 1 ? '1 call' : `${count} calls`),
  subagent: 'Subagent',
  subagentCalls: (count: number) => (count === 1 ? '1 tool call' : `${count} tool calls`),
  subagents: 'Subagents',
  subagentTask: (name: string, task: string) => `${name}: ${task}`,
  strategies: { parallel: 'side by side', sequential: 'one after the other, each with the answers before it' },
  question: 'Question',
  permission: 'Permission',
  because: (reason: string) => `Asked because ${reason}.`,
  once: 'Once',
  onceEdited: 'Once, as edited',
  onceHint: 'Run this call',
  always: 'Always',
  alwaysHint: (usual: string) => `Run it, and add a rule that allows ${usual}`,
  reject: 'Reject',
  editArguments: 'Edit the arguments',
  argumentsWrong: 'This is not valid JSON.',
  note: 'Note to the model',
  notePlaceholder: 'Why, or what to do instead',
  ownAnswer: 'Your own answer',
  recommended: 'recommended',
  send: 'Answer',
  mayNotAnswer: 'The owner, or a member who may steer, answers this.',
  wasAsked: 'The run waited for an answer at this moment.',
  optional: 'Without an answer the recommended one is taken.',
  /** An answer in words: that to a permission is one of three. */
  given: (answer: string | readonly string[]) =>
    [answer]
      .flat()
      .map((each) => ANSWERS[each] ?? each)
      .join(', '),
  loopAnswers: LOOP_ANSWERS,
  loopHints: {
    stop: 'What it has produced is kept',
    continue: 'Run the call; it may be repeated for the rest of this answer',
    skip: 'Do not run the call; its result says so to the model',
    correct: '',
  },
  loopCorrect: 'Send the correction',
  loopNotePlaceholder: 'What to do instead',
  /** An answer to the question about a repeated call: one of four, or own words. */
  givenOnLoop: (answer: string | readonly string[]) => LOOP_ANSWERS[answer as keyof typeof LOOP_ANSWERS] ?? String(answer),
  answered: (answer: string) => `Answered: ${answer}`,
  answeredByTimeout: (answer: string) => `Nobody answered in time: ${answer}`,
  answeredByRule: 'Allowed by the rule of another answer',
  retrying: (attempt: number, reason: string) => `Trying again (${attempt}): ${reason}`,
  compressed: (messages: number, results: number) =>
    !messages && results
      ? `The context is full: the model reads only the beginning and the end of ${results === 1 ? 'an old tool result' : `${results} old tool results`}.`
      : messages === 1
        ? 'The context is full: the oldest message is left out of what the model reads.'
        : `The context is full: the ${messages} oldest messages are left out of what the model reads.`,
  summarised: (messages: number) =>
    messages === 1 ? 'One earlier message is summarised for the model.' : `${messages} earlier messages are summarised for the model.`,
  readsAll: 'The context has room again: the model reads the whole conversation.',
  tainted: (tool: string) => `${tool} brought in text from outside. Calls that could do harm with it ask first.`,
  verdict: (isOfAnswer: boolean, by: 'facts' | 'model', result: 'valid' | 'invalid' | 'unsure', reasons: string) =>
    `${by === 'model' ? 'A model checked' : 'Check of'} ${isOfAnswer ? 'the answer' : 'the result'}: ${VERDICTS[result]}. ${reasons}`.trim(),
  superseded: 'An answer that a check refused',
  skill: (name: string) => `Skill ${name} is active`,
  loop: (kind: string, tool: string, times: number) =>
    kind === 'error' ? `${tool} has failed ${times} times in the same way; the model is informed.` : 'The model repeats itself.',
  memoriesUsed: (count: number) => (count === 1 ? '1 memory used' : `${count} memories used`),
  forgetMemory: 'Forget this for good',
  memoryForgotten: 'Forgotten.',
  memoriesGone: 'Some of them have been deleted since.',
  sources: 'Sources',
  /** Where a passage of a document is in it. */
  placeOf: ({ page, slide, row, last_row: last }: { page?: number; slide?: number; row?: number; last_row?: number }) =>
    page ? `p. ${page}` : slide ? `slide ${slide}` : row ? (last && last !== row ? `rows ${row} to ${last}` : `row ${row}`) : '',
  steered: 'You wrote while it was answering:',
  reminded: 'The model was reminded of what was left to do.',
  skillMatched: (name: string, score: string) => `Skill ${name} is active: the words of the message ask for it (score ${score})`,
  agentMatched: (name: string, score: string) => `${name} answers: the words of the message ask for this agent (score ${score})`,
  skillAsked: (name: string) => `The words of the message ask for the skill ${name}.`,
  agentAsked: (name: string) => `${name} answered, because the words of the message ask for this agent.`,
  skillGiven: (name: string) => `You activated the skill ${name}.`,
}

export type StepsText = Texts<typeof en>
export const useStepsText = defineText(en, import.meta.glob('../*/steps.ts'))
