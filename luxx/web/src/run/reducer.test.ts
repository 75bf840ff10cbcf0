import { describe, expect, test } from 'vitest'
import type { RunEvent } from './events'
import { reduce, replay } from './reducer'
import { EMPTY, openQuestions, type RunState } from './state'

interface Framed {
  event: RunEvent
  seq: number | null
}

const AT = '2026-11-21T23:31:41.915Z'
const USAGE = {
  prompt_tokens: 5,
  completion_tokens: 3,
  total_tokens: 8,
  reasoning_tokens: 0,
  cached_tokens: 0,
  cache_write_tokens: 0,
}

function frame(seq: number | null, event: object): Framed {
  return { seq, event: { run_id: 'r', timestamp: AT, ...event } as unknown as RunEvent }
}

function step(seq: number | null, fields: object, turn: object = {}): Framed {
  return frame(seq, { type: 'process_step', step: fields, ...turn })
}

const DONE = { type: 'done', message_id: 'm', token_count: 3, usage: USAGE, status: 'completed', finish: 'stop' }

const CHAT: Framed[] = [
  step(null, { id: 'step-0', index: 0, type: 'thinking', status: 'running', delta: 'I need ' }),
  step(null, { id: 'step-0', index: 0, type: 'thinking', status: 'running', delta: 'a tool.' }),
  step(1, { id: 'step-0', index: 0, type: 'thinking', content: 'I need a tool.', status: 'done', duration_ms: 12 }),
  step(2, { id: 'step-1', index: 1, type: 'tool_call', content: '', name: 'eval', arguments: '{}', id_ref: 'c', status: 'pending' }),
  step(3, { id: 'step-1', index: 1, type: 'tool_call', content: '', name: 'eval', arguments: '{}', id_ref: 'c', status: 'running' }),
  frame(4, { type: 'question_asked', question_id: 'q', call_id: 'c', kind: 'permission', prompt: 'May it?', options: [] }),
  frame(5, { type: 'question_answered', question_id: 'q', answer: 'once', answered_by: 'person' }),
  step(6, { id: 'step-1', index: 1, type: 'tool_call', content: '', name: 'eval', arguments: '{}', id_ref: 'c', status: 'done' }),
  step(7, { id: 'step-2', index: 2, type: 'tool_result', content: '42', name: 'eval', id_ref: 'c', success: true, status: 'done' }),
  frame(8, { type: 'warning', message: 'The server stopped.' }),
  step(null, { id: 'step-3', index: 3, type: 'text', status: 'running', delta: 'It is ' }),
  step(null, { id: 'step-3', index: 3, type: 'text', status: 'running', delta: '42.' }),
  step(9, { id: 'step-3', index: 3, type: 'text', content: 'It is 42.', status: 'done' }),
  frame(10, { type: 'cost_update', usage: USAGE, cost: 0.001 }),
  frame(11, DONE),
]

const ROOM: Framed[] = [
  frame(1, { type: 'room_started', room_id: 'o', task: 'Talk.' }),
  frame(2, { type: 'round_start', round: 1, max_rounds: 2 }),
  frame(3, { type: 'message_start', msg_id: 'a', seat_id: 1, sender_name: 'Ann', sender_color: '#111111', round_number: 1 }),
  frame(4, { type: 'message_start', msg_id: 'b', seat_id: 2, sender_name: 'Ben', sender_color: '#222222', round_number: 1 }),
  frame(null, { type: 'message_chunk', msg_id: 'a', content: 'Hel' }),
  frame(null, { type: 'message_chunk', msg_id: 'b', content: 'Good ' }),
  frame(null, { type: 'message_chunk', msg_id: 'a', content: 'lo' }),
  step(5, { id: 'step-0', index: 0, type: 'text', content: 'Hello', status: 'done' }, { msg_id: 'a' }),
  frame(6, { type: 'message_end', msg_id: 'a', content: 'Hello', token_count: 1, status: 'complete', finish: 'stop' }),
  frame(7, { type: 'message', message: { id: 'a', content: 'Hello', sender_name: 'Ann' } }),
  frame(8, { type: 'agent_error', msg_id: 'b', seat_id: 2, sender_name: 'Ben', message: 'No key.', code: 'provider_refused' }),
  frame(9, { type: 'message_end', msg_id: 'b', content: 'Good', token_count: 1, status: 'partial', finish: 'error' }),
  frame(10, { type: 'round_end', round: 1 }),
  frame(11, { type: 'room_completed', stop_reason: 'rounds', rounds: 1 }),
]

const TASK: Framed[] = [
  frame(1, { type: 'planning', step_id: 'task:plan-1', task_id: 't', attempt: 1 }),
  frame(2, { type: 'plan_created', step_id: 'task:plan-1', task_id: 't', steps: [{ id: 's1' }, { id: 's2' }] }),
  frame(3, { type: 'step_start', step_id: 's1', name: 'Collect', attempt: 1 }),
  step(4, { id: 'step-0', index: 0, type: 'text', content: 'Nothing.', status: 'done' }, { step_id: 's1' }),
  frame(5, { type: 'step_complete', step_id: 's1', status: 'failed', duration_ms: 5, error: 'No key.' }),
  frame(6, { type: 'step_skipped', step_id: 's2', because: 's1' }),
  frame(7, { type: 'step_start', step_id: 's1', name: 'Collect', attempt: 2 }),
  step(8, { id: 'step-0', index: 0, type: 'text', content: 'A list.', status: 'done' }, { step_id: 's1' }),
  frame(9, { type: 'step_complete', step_id: 's1', status: 'completed', duration_ms: 9 }),
  frame(10, { type: 'task_complete', status: 'completed', result: 'Done [s1].' }),
]

const STREAMS = { CHAT, ROOM, TASK }

/** Numbers that look random and are the same in each run. */
function numbers(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) % 4_294_967_296
    return state / 4_294_967_296
  }
}

function shuffled<T>(items: T[], next: () => number): T[] {
  const left = [...items]
  return items.map(() => left.splice(Math.floor(next() * left.length), 1)[0] as T)
}

describe.each(Object.entries(STREAMS))('the stream of a %s', (_, stream) => {
  const whole = replay(stream)
  const logged = stream.filter(({ seq }) => seq !== null)

  test('gives the same state without its deltas, as after a refresh', () => {
    expect(replay(logged)).toEqual(whole)
  })

  test('gives the same state when events come twice', () => {
    expect(replay(stream.flatMap((each) => (each.seq === null ? [each] : [each, each])))).toEqual(whole)
    expect(replay([...logged, ...logged])).toEqual(whole)
    expect(replay([...stream, ...stream])).toEqual(whole)
  })

  test('gives the same state in any order', () => {
    for (let seed = 1; seed <= 50; seed++) {
      expect(replay(shuffled(logged, numbers(seed))), `seed ${seed}`).toEqual(whole)
    }
  })

  test('gives the same state when it is cut anywhere and continues from the last event', () => {
    for (let cut = 0; cut <= stream.length; cut++) {
      const before = stream.slice(0, cut)
      const last = Math.max(0, ...before.map(({ seq }) => seq ?? 0))
      const after = logged.filter(({ seq }) => (seq ?? 0) > last)
      expect(replay([...before, ...after]), `cut at ${cut}`).toEqual(whole)
    }
  })

  test('changes no earlier state', () => {
    const states: RunState[] = [EMPTY]
    const copies: RunState[] = [structuredClone(EMPTY)]
    for (const { event, seq } of stream) {
      states.push(reduce(states.at(-1) ?? EMPTY, event, seq))
      copies.push(structuredClone(states.at(-1) ?? EMPTY))
    }
    expect(states).toEqual(copies)
  })
})

test('a chat shows its growing text, and its steps in order', () => {
  const texts = (state: RunState): string[] => (state.turns['']?.steps ?? []).map((each) => each.content)
  expect(texts(replay(CHAT.slice(0, 1)))).toEqual(['I need '])
  expect(texts(replay(CHAT.slice(0, 2)))).toEqual(['I need a tool.'])
  const state = replay(CHAT)
  expect(texts(state)).toEqual(['I need a tool.', '', '42', 'It is 42.'])
  expect(state.status).toBe('completed')
  expect(state.notes.map((note) => note.event.type)).toEqual(['warning'])
})

test('a planning turn ends with the next attempt, the plan or a pause, and is no step of the task', () => {
  const plans = (attempt: number, seq: number): Framed => frame(seq, { type: 'planning', step_id: `task:plan-${attempt}`, task_id: 't', attempt })
  const text = step(null, { id: 'step-0', index: 0, type: 'text', status: 'running', delta: 'Hm' }, { step_id: 'task:plan-1' })
  const states = (events: Framed[]): unknown => {
    const state = replay(events)
    expect(state.taskSteps).toEqual({})
    return Object.fromEntries(Object.values(state.turns).map((turn) => [turn.key, [turn.status, turn.steps.length]]))
  }
  expect(states([plans(1, 1), text])).toEqual({ 'task:plan-1': ['open', 1] })
  expect(states([plans(1, 1), text, plans(2, 2)])).toEqual({ 'task:plan-1': ['complete', 0], 'task:plan-2': ['open', 0] })
  expect(states([plans(1, 1), text, frame(2, { type: 'plan_created', step_id: 'task:plan-1', task_id: 't', steps: [] })])).toEqual({
    'task:plan-1': ['complete', 0],
  })
  const paused = [plans(1, 1), text, frame(2, { type: 'task_paused' })]
  expect(states(paused)).toEqual({ 'task:plan-1': ['complete', 0] })
  expect(states([...paused, plans(1, 3), text])).toEqual({ 'task:plan-1': ['open', 1] })
})

test('a call that is made again discards the open steps of its turn only', () => {
  const again = (turn: object): Framed => frame(2, { type: 'retrying', attempt: 2, delay_ms: 0, reason: 'It stopped.', ...turn })
  const lost = step(null, { id: 'step-1', index: 1, type: 'text', status: 'running', delta: 'lost' })
  const said = step(1, { id: 'step-0', index: 0, type: 'text', content: 'Well. ', status: 'done' })
  const anew = step(null, { id: 'step-1', index: 1, type: 'text', status: 'running', delta: 'new' })
  const texts = (state: RunState, key = ''): string[] => (state.turns[key]?.steps ?? []).map((each) => each.content)
  expect(texts(replay([said, lost, again({})]))).toEqual(['Well. '])
  expect(texts(replay([said, lost, again({}), anew]))).toEqual(['Well. ', 'new'])

  const ofStep = { ...lost, event: { ...lost.event, step_id: 'a' } as RunEvent }
  expect(texts(replay([{ ...again({ step_id: 'b' }), seq: 1 }, ofStep]), 'a')).toEqual(['lost'])
  expect(texts(replay([ofStep, { ...again({ step_id: 'b' }), seq: 1 }]), 'a')).toEqual(['lost'])
  expect(texts(replay([ofStep, { ...again({ step_id: 'a' }), seq: 1 }]), 'a')).toEqual([])

  const room = [
    step(1, { id: 'step-0', index: 0, type: 'text', content: 'Well. ', status: 'done' }, { msg_id: 'a' }),
    frame(null, { type: 'message_chunk', msg_id: 'a', content: 'Well. ' }),
    frame(null, { type: 'message_chunk', msg_id: 'a', content: 'lost' }),
    again({ msg_id: 'a' }),
  ]
  expect(replay(room).turns['a']?.text).toBe('Well. ')
  const chunk = frame(null, { type: 'message_chunk', msg_id: 'a', content: 'Well. new', is_snapshot: true })
  expect(replay([...room, chunk]).turns['a']?.text).toBe('Well. new')
})

test('a snapshot replaces the text of its step, and an empty one withdraws it', () => {
  const delta = step(null, { id: 'step-0', index: 0, type: 'text', status: 'running', delta: 'lost' })
  const snapshot = step(null, { id: 'step-0', index: 0, type: 'text', status: 'running', content: 'Hello' })
  const more = step(null, { id: 'step-0', index: 0, type: 'text', status: 'running', delta: ' you' })
  const empty = step(null, { id: 'step-0', index: 0, type: 'text', status: 'running', content: '' })
  expect(replay([delta, snapshot, more]).turns['']?.steps[0]?.content).toBe('Hello you')
  expect(replay([delta, empty]).turns['']?.steps).toEqual([])
})

test('a run waits while a question is open, and goes on once all are answered', () => {
  const asked = replay(CHAT.slice(0, 6))
  expect(asked.status).toBe('waiting')
  expect(openQuestions(asked).map((question) => question.asked.question_id)).toEqual(['q'])
  const answered = replay(CHAT.slice(0, 7))
  expect(answered.status).toBe('running')
  expect(openQuestions(answered)).toEqual([])
})

test('a question goes with the turn that asked it, or with its run', () => {
  const asked = frame(5, {
    type: 'question_asked',
    question_id: 'q',
    msg_id: 'a',
    call_id: 'c',
    kind: 'clarification',
    prompt: 'Which?',
    options: [],
  })
  const waiting = replay([...ROOM.slice(0, 4), asked])
  expect(waiting.status).toBe('waiting')
  const cut = replay([
    ...ROOM.slice(0, 4),
    asked,
    frame(6, { type: 'message_end', msg_id: 'a', content: '', token_count: 0, status: 'partial', finish: null }),
  ])
  expect([cut.status, openQuestions(cut)]).toEqual(['running', []])
  const other = replay([
    ...ROOM.slice(0, 4),
    asked,
    frame(6, { type: 'message_end', msg_id: 'b', content: '', token_count: 0, status: 'partial', finish: null }),
  ])
  expect([other.status, openQuestions(other).length]).toEqual(['waiting', 1])
  const ended = replay([...ROOM.slice(0, 4), asked, frame(6, { type: 'room_completed', stop_reason: 'person', rounds: 0 })])
  expect([ended.status, openQuestions(ended)]).toEqual(['completed', []])
})

test('speakers of a room grow side by side, and an error ends only its own turn', () => {
  const speaking = replay(ROOM.slice(0, 7))
  expect(speaking.turnOrder.map((key) => speaking.turns[key]?.text)).toEqual(['Hello', 'Good '])
  const state = replay(ROOM)
  expect(state.turns.b?.error?.message).toBe('No key.')
  expect(state.turns.a?.status).toBe('complete')
  expect(state.stopReason).toBe('rounds')
})

test('a step of a task that is tried again begins with an empty transcript', () => {
  const failed = replay(TASK.slice(0, 6))
  expect(failed.taskSteps.s1).toMatchObject({ state: 'failed', error: 'No key.', attempt: 1 })
  expect(failed.taskSteps.s2).toMatchObject({ state: 'skipped', skippedBecause: 's1' })
  const state = replay(TASK)
  expect(state.turns.s1?.steps.map((each) => each.content)).toEqual(['A list.'])
  expect(state.taskSteps.s1).toMatchObject({ state: 'completed', error: null, attempt: 2 })
  expect(state.result).toBe('Done [s1].')
})

test('the subagents of a call are shown in the order of its tasks, each in its newest state', () => {
  const assigned = (index: number, status: string): object => ({
    type: 'subagent_assigned',
    call_id: 'c',
    subagent_run_id: `r${index}`,
    task: 'Look.',
    index,
    status,
  })
  const events = [assigned(1, 'running'), assigned(0, 'running'), assigned(1, 'completed')]
  const state = replay(events.map((event, at) => frame(at + 1, event)))
  expect(state.subagents.c?.map((each) => [each.index, each.status])).toEqual([
    [0, 'running'],
    [1, 'completed'],
  ])
})
