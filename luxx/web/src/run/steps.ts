/** The steps of a message as they are shown: a tool call and its result are one item. */
import type { Schema } from '@/api/types'
import type { Step } from './events'
import type { Question, RunNote } from './state'

export type ShownStep = Step & { isOpen?: boolean; startedAt?: string }

export interface ToolItem {
  kind: 'tool'
  key: string
  call: ShownStep
  result: ShownStep | null
  questions: Question[]
}

export type StepItem = { kind: 'thinking' | 'text' | 'user'; key: string; step: ShownStep } | ToolItem

export function itemsOf(steps: readonly ShownStep[], questions: readonly Question[] = []): StepItem[] {
  const items: StepItem[] = []
  const calls = new Map<string, ToolItem>()
  for (const step of steps) {
    if (step.type === 'tool_result') {
      const item = calls.get(step.id_ref ?? '')
      if (item) item.result = step
    } else if (step.type === 'tool_call') {
      const own = questions.filter((question) => question.asked.call_id === step.id_ref)
      const item: ToolItem = { kind: 'tool', key: step.id, call: step, result: null, questions: own }
      calls.set(step.id_ref ?? '', item)
      items.push(item)
    } else {
      items.push({ kind: step.type, key: step.id, step })
    }
  }
  return items
}

/** Questions whose tool call is not among the steps. */
export function looseQuestions(steps: readonly ShownStep[], questions: readonly Question[]): Question[] {
  const calls = new Set(steps.filter((step) => step.type === 'tool_call').map((step) => step.id_ref))
  return questions.filter((question) => !calls.has(question.asked.call_id))
}

export type Verdict = Schema<'Verdict'>

/** The verdicts of checks of one turn. */
export function verdictsIn(notes: readonly RunNote[], turnKey: string): Verdict[] {
  return notes.flatMap(({ event, turnKey: key }) => (event.type === 'verdict' && key === turnKey ? [event] : []))
}

/** The remembered facts that a turn was given. */
export function memoriesIn(notes: readonly RunNote[], turnKey: string): string[] {
  return notes.flatMap(({ event, turnKey: key }) => (event.type === 'memory_recalled' && key === turnKey ? event.memories_used : []))
}

/** Where verdicts stand: below calls, below the refused answers, which are texts, and below the answer. */
export function verdictsOf(
  steps: readonly ShownStep[],
  verdicts: readonly Verdict[],
): { byCall: Record<string, Verdict[]>; byText: Record<string, Verdict[]>; ofAnswer: Verdict[] } {
  const refused = steps.filter((step) => step.superseded)
  const byCall: Record<string, Verdict[]> = {}
  const byText: Record<string, Verdict[]> = {}
  const ofAnswer: Verdict[] = []
  for (const verdict of verdicts) {
    const text = verdict.round ? refused[verdict.round - 1] : undefined
    if (verdict.target !== 'answer') (byCall[verdict.target] ??= []).push(verdict)
    else if (text) (byText[text.id] ??= []).push(verdict)
    else ofAnswer.push(verdict)
  }
  return { byCall, byText, ofAnswer }
}

const TELLING = ['command', 'path', 'query', 'url', 'expression', 'pattern', 'question', 'context', 'goal', 'task', 'name', 'code']

/** The argument that says most about a call, in one line. */
export function mainArgument(json: string | undefined): string {
  const values = parseObject(json)
  if (!values) return ''
  const name = TELLING.find((each) => typeof values[each] === 'string') ?? Object.keys(values)[0]
  const value = name === undefined ? '' : values[name]
  const text = typeof value === 'string' ? value : JSON.stringify(value)
  return (text ?? '').replace(/\s+/g, ' ').slice(0, 200)
}

export function parseObject(json: string | undefined): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(json ?? '')
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null
  } catch {
    return null
  }
}

/** The artifacts that a tool call made or changed, each with its newest version: those that its result names. */
export function artifactsIn(files: readonly Schema<'StepFile'>[] | undefined): { id: string; version: number }[] {
  const found = new Map<string, number>()
  for (const { artifact_id: id, version } of files ?? []) if (id) found.set(id, Math.max(found.get(id) ?? 0, version ?? 0))
  return [...found].map(([id, version]) => ({ id, version }))
}
