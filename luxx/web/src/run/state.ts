/** What a run's events add up to. Values are never changed in place: what is equal stays the same object. */
import type { Schema } from '@/api/types'
import type { RunEvent, Step } from './events'

export interface LiveStep extends Step {
  /** The step still grows. */
  isOpen: boolean
  startedAt: string
}

/** One agent's work: the answer of a chat (key ''), a message of a room, a step of a task. */
export interface Turn {
  key: string
  steps: LiveStep[]
  /** Rooms: who speaks. */
  seatId: number | null
  senderName: string
  senderColor: string
  round: number
  /** Rooms: the text so far, or the whole of it. */
  text: string
  status: 'open' | 'complete' | 'partial'
  /** Why the last model call ended. */
  finish: string | null
  provider: string | null
  model: string | null
  tokenCount: number
  error: { message: string; code: string } | null
}

export interface Question {
  asked: Schema<'QuestionAsked'>
  answered: Schema<'QuestionAnswered'> | null
}

export type TaskStepState = 'pending' | 'running' | 'completed' | 'failed' | 'skipped'

export interface TaskStep {
  id: string
  name: string
  state: TaskStepState
  attempt: number
  startedAt: string | null
  durationMs: number | null
  error: string | null
  /** The step that it needed, which failed or was skipped; empty: a person left it out. */
  skippedBecause: string | null
}

/** A line between the steps that a person should see. */
export interface RunNote {
  seq: number
  turnKey: string
  event: Extract<RunEvent, { type: NoteType }>
}

export type NoteType =
  | 'warning'
  | 'retrying'
  | 'context_compressed'
  | 'memory_recalled'
  | 'verdict'
  | 'doom_loop_detected'
  | 'tainted'
  | 'skill_activated'
  | 'pattern_used'
  | 'subagent_assigned'
  | 'steered'
  | 'floor_given'
  | 'agent_error'

export interface RunSummary {
  run: Schema<'Run'> | null
  status: Schema<'RunStatus'>
  usage: Schema<'Usage'> | null
  cost: number | null
  error: { message: string; code: string; isRetryable: boolean } | null
  done: Schema<'Done'> | null
  stopReason: string | null
  /** Rooms: the phrase that ended it. */
  stopPhrase: string | null
}

export interface RunState extends RunSummary {
  /** The last event of the log that is part of this state. */
  seq: number
  /** Events that arrived before those that precede them. */
  held: Readonly<Record<number, RunEvent>>
  turns: Readonly<Record<string, Turn>>
  /** The keys of `turns`, in the order in which they began. */
  turnOrder: readonly string[]
  questions: Readonly<Record<string, Question>>
  notes: readonly RunNote[]
  /** By the call that delegates. */
  subagents: Readonly<Record<string, readonly Schema<'SubagentAssigned'>[]>>
  /** The to-do list of a chat's answer, as the model or a person last wrote it; null: nobody has. */
  todos: readonly Schema<'TodoItem'>[] | null
  round: { number: number; of: number | null } | null
  /** Messages of rooms that are stored, by their id: those of people too. */
  messages: readonly Schema<'RoomMessage'>[]
  plan: Schema<'PlanCreated'> | null
  taskSteps: Readonly<Record<string, TaskStep>>
  result: string | null
}

export const EMPTY: RunState = {
  run: null,
  status: 'queued',
  usage: null,
  cost: null,
  error: null,
  done: null,
  stopReason: null,
  stopPhrase: null,
  seq: 0,
  held: {},
  turns: {},
  turnOrder: [],
  questions: {},
  notes: [],
  subagents: {},
  todos: null,
  round: null,
  messages: [],
  plan: null,
  taskSteps: {},
  result: null,
}

/** The questions that wait for an answer. */
export function openQuestions(state: RunState): Question[] {
  return Object.values(state.questions).filter((question) => question.answered === null)
}
