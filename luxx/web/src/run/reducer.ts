/**
 * `reduce(state, event, seq)`: the one way in which events become what the pages show, of chats, rooms and tasks,
 * live, after a refresh and in a replay. It is pure. An event of the log counts once, in the order of the log:
 * one that comes twice is ignored, one that comes early is held until those before it are there.
 */
import type { Schema } from '@/api/types'
import type { MessageChunk, ProcessStep, RunEvent } from './events'
import { EMPTY, type LiveStep, type NoteType, type RunState, type TaskStep, type Turn } from './state'

const NOTES: ReadonlySet<string> = new Set<NoteType>([
  'warning',
  'retrying',
  'context_compressed',
  'memory_recalled',
  'doom_loop_detected',
  'verdict',
  'tainted',
  'skill_activated',
  'pattern_used',
  'steered',
  'floor_given',
  'agent_error',
])

/** `seq` is null for frames that are not in the log: the state of the run, deltas and snapshots. */
export function reduce(state: RunState, event: RunEvent, seq: number | null): RunState {
  if (seq === null) return applyFrame(state, event)
  if (seq <= state.seq || seq in state.held) return state
  if (seq > state.seq + 1) return { ...state, held: { ...state.held, [seq]: event } }
  let next: RunState = { ...applyLogged(state, event, seq), seq }
  while (next.seq + 1 in next.held) {
    const { [next.seq + 1]: early, ...held } = next.held
    next = { ...applyLogged({ ...next, held }, early as RunEvent, next.seq + 1), seq: next.seq + 1 }
  }
  return next
}

/** The state after all of these events, in any order. */
export function replay(events: Iterable<{ event: RunEvent; seq: number | null }>): RunState {
  let state = EMPTY
  for (const { event, seq } of events) state = reduce(state, event, seq)
  return state
}

function applyFrame(state: RunState, event: RunEvent): RunState {
  switch (event.type) {
    case 'run': {
      const isStale = state.done !== null || event.run.last_seq < state.seq
      const { usage, cost, status } = event.run
      return isStale ? { ...state, run: event.run } : { ...state, run: event.run, usage, cost, status }
    }
    case 'process_step':
      return growStep(state, event)
    case 'message_chunk':
      return growMessage(state, event)
    default:
      return state
  }
}

function applyLogged(state: RunState, event: RunEvent, seq: number): RunState {
  const isNote = event.type === 'subagent_assigned' ? event.by === 'router' : NOTES.has(event.type)
  const next = isNote ? withNote(state, event, seq) : state
  return applyCommon(applyRoom(applyTask(next, event), event), event)
}

function withNote(state: RunState, event: RunEvent, seq: number): RunState {
  const note = { seq, turnKey: keyOf(event), event: event as Extract<RunEvent, { type: NoteType }> }
  return { ...state, notes: [...state.notes, note] }
}

function applyCommon(state: RunState, event: RunEvent): RunState {
  switch (event.type) {
    case 'process_step':
      return closeStep(running(state), event)
    case 'retrying':
      return withdrawOpenSteps(state, keyOf(event))
    case 'cost_update':
      return { ...state, usage: event.usage, cost: event.cost }
    case 'question_asked':
      return {
        ...state,
        status: 'waiting',
        questions: { ...state.questions, [event.question_id]: { asked: event, answered: null } },
      }
    case 'question_answered': {
      const question = state.questions[event.question_id]
      if (!question) return state
      const questions = { ...state.questions, [event.question_id]: { ...question, answered: event } }
      const isOpen = Object.values(questions).some((each) => each.answered === null)
      return { ...state, questions, status: isOpen ? 'waiting' : 'running' }
    }
    case 'plan_updated':
      return keyOf(event) === '' ? { ...state, todos: event.todos } : state
    case 'subagent_assigned':
      // The words of the message chose the agent that answers: there is no subagent.
      return event.by === 'router' ? state : { ...state, subagents: withSubagent(state.subagents, event) }
    case 'error':
      return {
        ...state,
        error: { message: event.message, code: event.code, isRetryable: event.retryable },
      }
    case 'done': {
      const status = event.status === 'failed' ? 'failed' : isCancelled(event) ? 'cancelled' : 'completed'
      const turns = state.turns[''] ? { ...state.turns, '': endTurn(state.turns[''], event) } : state.turns
      return { ...withoutOpenQuestions(state), done: event, status, usage: event.usage, turns, stopReason: event.stop_reason ?? event.finish }
    }
    default:
      return state
  }
}

function applyRoom(state: RunState, event: RunEvent): RunState {
  switch (event.type) {
    case 'room_started':
      return { ...state, status: 'running' }
    case 'round_start':
      return { ...running(state), round: { number: event.round, of: event.max_rounds ?? null } }
    case 'message_start':
      return changeTurn(running(state), event.msg_id ?? '', (turn) => ({
        ...turn,
        seatId: event.seat_id,
        senderName: event.sender_name,
        senderColor: event.sender_color,
        round: event.round_number,
      }))
    case 'message_end':
      return changeTurn(withoutOpenQuestions(state, event.msg_id ?? ''), event.msg_id ?? '', (turn) => ({
        ...endTurn(turn, event),
        text: event.content,
        status: event.status === 'complete' ? 'complete' : 'partial',
      }))
    case 'message':
      return { ...state, messages: [...state.messages, event.message] }
    case 'agent_error':
      return changeTurn(state, event.msg_id ?? '', (turn) => ({
        ...turn,
        status: 'partial',
        error: { message: event.message, code: event.code },
      }))
    case 'room_paused':
      return { ...state, status: 'paused' }
    case 'room_completed':
      return {
        ...withoutOpenQuestions(state),
        status: statusAtEnd(state, event.stop_reason),
        stopReason: event.stop_reason,
        stopPhrase: event.phrase ?? null,
      }
    default:
      return state
  }
}

function applyTask(state: RunState, event: RunEvent): RunState {
  switch (event.type) {
    case 'planning':
      return withNewTurn(endPlanning(running(state)), event.step_id ?? '')
    case 'plan_created':
      return { ...endPlanning(running(state)), plan: event }
    case 'step_start': {
      const key = event.step_id ?? ''
      return changeTaskStep(running(withNewTurn(state, key)), key, {
        name: event.name,
        state: 'running',
        attempt: event.attempt,
        startedAt: event.timestamp,
        durationMs: null,
        error: null,
        skippedBecause: null,
      })
    }
    case 'step_complete': {
      const key = event.step_id ?? ''
      const closed = withoutOpenQuestions(state, key)
      const ended = closed.turns[key] ? changeTurn(closed, key, (turn) => endTurn(turn, event)) : closed
      return changeTaskStep(ended, key, {
        state: event.status as TaskStep['state'],
        durationMs: event.duration_ms ?? null,
        error: event.error ?? null,
      })
    }
    case 'step_skipped':
      return changeTaskStep(state, event.step_id ?? '', { state: 'skipped', skippedBecause: event.because })
    case 'task_paused':
      return { ...endPlanning(state), status: 'paused' }
    case 'task_complete': {
      const status = event.status === 'terminated' ? 'cancelled' : event.status === 'failed' ? 'failed' : 'completed'
      return { ...endPlanning(withoutOpenQuestions(state)), status, result: event.result ?? null }
    }
    case 'memory_complete':
    case 'index_complete':
    case 'pattern_complete':
    case 'title_complete':
    case 'follow_ups_complete':
      return { ...state, status: event.status as RunState['status'] }
    default:
      return state
  }
}

/** A planning turn ends with the plan, the next attempt, a pause or the run. */
function endPlanning(state: RunState): RunState {
  const open = Object.values(state.turns).filter((turn) => turn.key.startsWith('task:plan') && turn.status === 'open')
  if (open.length === 0) return state
  const ended = open.map((turn) => [turn.key, endTurn(turn, {})] as const)
  return { ...state, turns: { ...state.turns, ...Object.fromEntries(ended) } }
}

function statusAtEnd(state: RunState, stopReason: string): RunState['status'] {
  if (stopReason === 'cancelled') return 'cancelled'
  return stopReason === 'error' || state.error ? 'failed' : 'completed'
}

/** Logs of older versions have no reason. */
function isCancelled(done: Schema<'Done'>): boolean {
  return done.status === 'stopped' && (done.stop_reason ?? 'cancelled') === 'cancelled'
}

/** Work that goes on shows that the run no longer waits or pauses. */
function running(state: RunState): RunState {
  if (state.status === 'running') return state
  const isAsked = Object.values(state.questions).some((question) => question.answered === null)
  return isAsked || state.done ? state : { ...state, status: 'running' }
}

/** Nobody answers the questions of a turn that is over, or of a run that has ended. */
function withoutOpenQuestions(state: RunState, key?: string): RunState {
  const all = Object.entries(state.questions)
  const left = all.filter(([, { asked, answered }]) => answered || (key !== undefined && keyOf(asked) !== key))
  if (left.length === all.length) return state
  const isOpen = left.some(([, { answered }]) => answered === null)
  const status = state.status === 'waiting' && !isOpen ? 'running' : state.status
  return { ...state, questions: Object.fromEntries(left), status }
}

// --- turns and their steps

function keyOf(event: RunEvent): string {
  if ('msg_id' in event && event.msg_id) return event.msg_id
  return 'step_id' in event && event.step_id ? event.step_id : ''
}

function emptyTurn(key: string): Turn {
  return {
    key,
    steps: [],
    seatId: null,
    senderName: '',
    senderColor: '',
    round: 0,
    text: '',
    status: 'open',
    finish: null,
    provider: null,
    model: null,
    tokenCount: 0,
    error: null,
  }
}

function withTurnKey(state: RunState, key: string): RunState {
  return state.turnOrder.includes(key) ? state : { ...state, turnOrder: [...state.turnOrder, key] }
}

function withNewTurn(state: RunState, key: string): RunState {
  return withTurnKey({ ...state, turns: { ...state.turns, [key]: emptyTurn(key) } }, key)
}

function changeTurn(state: RunState, key: string, change: (turn: Turn) => Turn): RunState {
  const turn = change(state.turns[key] ?? emptyTurn(key))
  return { ...withTurnKey(state, key), turns: { ...state.turns, [key]: turn } }
}

function changeTaskStep(state: RunState, id: string, change: Partial<TaskStep>): RunState {
  const empty: TaskStep = {
    id,
    name: '',
    state: 'pending',
    attempt: 0,
    startedAt: null,
    durationMs: null,
    error: null,
    skippedBecause: null,
  }
  const step = { ...empty, ...state.taskSteps[id], ...change }
  return { ...state, taskSteps: { ...state.taskSteps, [id]: step } }
}

interface TurnEnd {
  finish?: string | null
  provider_name?: string | null
  model?: string | null
  token_count?: number
}

function endTurn(turn: Turn, event: TurnEnd): Turn {
  return {
    ...turn,
    status: turn.status === 'open' ? 'complete' : turn.status,
    finish: event.finish ?? null,
    provider: event.provider_name ?? null,
    model: event.model ?? null,
    tokenCount: event.token_count ?? turn.tokenCount,
    steps: turn.steps.filter((step) => !step.isOpen),
  }
}

/** A step that grows: a delta adds to it, a snapshot replaces it, and an empty snapshot withdraws it. */
function growStep(state: RunState, event: ProcessStep): RunState {
  const key = keyOf(event)
  const turn = state.turns[key] ?? emptyTurn(key)
  const frame = event.step
  const present = turn.steps.find((step) => step.index === frame.index)
  if (turn.status !== 'open' || (present && !present.isOpen) || state.done) return state
  const isDelta = frame.delta !== undefined
  const isCall = frame.type === 'tool_call'
  if (!isDelta && !(isCall ? frame.arguments : frame.content) && !frame.name) {
    return present ? changeTurn(state, key, () => ({ ...turn, steps: without(turn.steps, frame.index) })) : state
  }
  const { delta = '', ...rest } = frame
  const grown: LiveStep = {
    ...present,
    ...rest,
    content: isDelta ? (present?.content ?? '') + (isCall ? '' : delta) : (frame.content ?? ''),
    isOpen: true,
    startedAt: present?.startedAt ?? event.timestamp,
  }
  if (isCall) grown.arguments = isDelta ? (present?.arguments ?? '') + delta : (frame.arguments ?? '')
  return changeTurn(state, key, () => ({ ...turn, steps: put(turn.steps, grown) }))
}

/** An event of the log has the whole step. */
function closeStep(state: RunState, event: ProcessStep): RunState {
  const key = keyOf(event)
  return changeTurn(state, key, (turn) => {
    const present = turn.steps.find((step) => step.index === event.step.index)
    const startedAt = present && !present.isOpen ? present.startedAt : event.timestamp
    return { ...turn, steps: put(turn.steps, { ...event.step, isOpen: false, startedAt }) }
  })
}

/** The model call is made again: what is shown of it, and not in the log, is discarded. */
function withdrawOpenSteps(state: RunState, key: string): RunState {
  const turn = state.turns[key]
  if (turn?.status !== 'open') return state
  const steps = turn.steps.filter((step) => !step.isOpen)
  const written = steps.filter((step) => step.type === 'text' && step.status !== 'interrupted' && !step.superseded)
  const text = turn.text && written.map((step) => step.content).join('')
  return { ...state, turns: { ...state.turns, [key]: { ...turn, steps, text } } }
}

function growMessage(state: RunState, event: MessageChunk): RunState {
  const turn = state.turns[event.msg_id]
  if (turn && turn.status !== 'open') return state
  return changeTurn(state, event.msg_id, (present) => ({
    ...present,
    text: event.is_snapshot ? event.content : present.text + event.content,
  }))
}

function put(steps: LiveStep[], step: LiveStep): LiveStep[] {
  const at = steps.findIndex((each) => each.index >= step.index)
  if (at < 0) return [...steps, step]
  return steps[at]?.index === step.index ? steps.with(at, step) : steps.toSpliced(at, 0, step)
}

function without(steps: LiveStep[], index: number): LiveStep[] {
  return steps.filter((step) => step.index !== index)
}

/** The subagents by their calls, each call's in the order of its tasks. */
function withSubagent(subagents: RunState['subagents'], event: Schema<'SubagentAssigned'>): RunState['subagents'] {
  const others = (subagents[event.call_id] ?? []).filter((each) => each.subagent_run_id !== event.subagent_run_id)
  const ofCall = [...others, event].toSorted((one, other) => (one.index ?? 0) - (other.index ?? 0))
  return { ...subagents, [event.call_id]: ofCall }
}
