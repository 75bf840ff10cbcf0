/** What the timeline shows of an event: its name, a few words of it, and the kind that its mark has. */
import { stateOf } from '@/components/states'
import { useCommonText } from '@/i18n/en/common'
import { type RunsText, useRunsText } from '@/i18n/en/runs'
import { useServerText } from '@/i18n/en/server'
import { useStepsText } from '@/i18n/en/steps'
import type { RunEvent } from '@/run/events'
import { mainArgument } from '@/run/steps'

const server = useServerText()
const common = useCommonText()
const steps = useStepsText()
const runs = useRunsText()

export type MarkKind = 'model' | 'tool' | 'question' | 'error' | 'other'

export const MARK_COLORS: Record<MarkKind, string> = {
  model: 'bg-accent',
  tool: 'bg-running',
  question: 'bg-waiting',
  error: 'bg-failed',
  other: 'bg-line-strong',
}

const ERRORS: ReadonlySet<string> = new Set(['error', 'agent_error', 'warning'])

export function markOf(event: RunEvent): MarkKind {
  if (event.type === 'process_step') return event.step.type.startsWith('tool') ? 'tool' : 'model'
  if (event.type === 'cost_update') return 'model'
  if (event.type === 'question_asked' || event.type === 'question_answered') return 'question'
  if (event.type === 'step_complete' && event.status === 'failed') return 'error'
  return ERRORS.has(event.type) ? 'error' : 'other'
}

export function nameOf(event: RunEvent, text: RunsText): string {
  if (event.type === 'process_step') return text.step[event.step.type as keyof RunsText['step']] ?? event.step.type
  const names: Record<string, string> = text.eventNames
  return names[event.type] ?? event.type
}

/** The name of a step; that of the one which writes the result of a task is the server's. */
export function nameOfStep(id: string | undefined, name: string): string {
  return id === 'task:result' ? runs.step.tool_result : name
}

/** At most about 120 characters. */
export function detailOf(event: RunEvent): string {
  return shorten(wordsOf(event))
}

function wordsOf(event: RunEvent): string {
  switch (event.type) {
    case 'process_step': {
      const { step } = event
      if (step.type === 'tool_call') return `${step.name ?? ''} ${mainArgument(step.arguments)}`
      return step.type === 'tool_result' ? (step.name ?? '') : (step.content ?? '')
    }
    case 'question_asked':
      return server.translate(event.prompt)
    case 'question_answered':
      return steps.given(event.answer)
    case 'error':
    case 'agent_error':
    case 'warning':
      return server.translate(event.message)
    case 'retrying':
      return server.translate(event.reason)
    case 'message_start':
      return event.sender_name
    case 'message_end':
      return event.content
    case 'step_start':
      return nameOfStep(event.step_id, event.name)
    case 'step_complete':
      return event.error ? server.translate(event.error) : common.states[stateOf(event.status)]
    case 'verdict':
      return steps.verdict(event.target === 'answer', event.by, event.result, event.reasons.map((each) => server.translate(each)).join(' '))
    case 'skill_activated':
      return event.by === 'router' ? steps.skillMatched(event.name, (event.score ?? 0).toFixed(1)) : event.name
    case 'pattern_used':
      return event.name
    case 'subagent_assigned':
      return event.by === 'router' ? steps.agentMatched(event.agent_name ?? '', (event.score ?? 0).toFixed(1)) : ''
    case 'ui_command':
      return event.payload.message ?? event.payload.path ?? event.payload.title ?? event.payload.target ?? event.command
    case 'plan_updated':
      return event.todos.map(({ title }) => title).join(', ')
    case 'doom_loop_detected':
      return steps.loop(event.kind, event.tool, event.times)
    case 'doom_loop_intervened':
      return steps.givenOnLoop(event.choice)
    case 'memory_recalled':
      return steps.memoriesUsed(event.memories_used.length)
    case 'tainted':
      return event.by
    case 'embedded':
      return `${event.done} / ${event.total}`
    case 'episode_synced':
    case 'document_parsed':
      return event.reason ? server.translate(event.reason) : ''
    default:
      return ''
  }
}

function shorten(words: string): string {
  const line = words.replace(/\s+/g, ' ').trim()
  return line.length > 120 ? `${line.slice(0, 119)}…` : line
}
