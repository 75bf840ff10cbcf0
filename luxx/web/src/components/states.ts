/** The states of runs, sessions, steps and calls as people see them. Each has one icon, colour and word everywhere. */
import { CircleAlert, CircleCheck, CircleDashed, CirclePause, CircleSlash, Hand, LoaderCircle } from 'lucide-vue-next'
import type { CommonText } from '@/i18n/en/common'

export type State = keyof CommonText['states']

/** The server's names that differ. A paused task is `block` too: see `sessionState`. */
const NAMES: Readonly<Record<string, State>> = {
  completed: 'done',
  complete: 'done',
  ok: 'done',
  error: 'failed',
  block: 'waiting',
  terminated: 'cancelled',
  partial: 'cancelled',
  interrupted: 'cancelled',
  open: 'running',
  idle: 'pending',
}

export const LOOKS = {
  queued: { icon: CircleDashed, color: 'text-muted' },
  pending: { icon: CircleDashed, color: 'text-muted' },
  running: { icon: LoaderCircle, color: 'text-running' },
  waiting: { icon: Hand, color: 'text-waiting' },
  paused: { icon: CirclePause, color: 'text-muted' },
  done: { icon: CircleCheck, color: 'text-done' },
  failed: { icon: CircleAlert, color: 'text-failed' },
  cancelled: { icon: CircleSlash, color: 'text-muted' },
  skipped: { icon: CircleSlash, color: 'text-muted' },
} as const satisfies Record<State, unknown>

export function stateOf(name: string): State {
  const state = NAMES[name] ?? name
  return state in LOOKS ? (state as State) : 'pending'
}

/** The state of a conversation, room or task; `isWaiting`: its run waits for the reader. */
export function sessionState(status: string, isWaiting: boolean): State {
  if (isWaiting) return 'waiting'
  return status === 'block' ? 'paused' : stateOf(status)
}

/** Whether a run of this status goes on without being resumed. */
export function isActive(status: string): boolean {
  return status === 'queued' || status === 'running' || status === 'waiting'
}
