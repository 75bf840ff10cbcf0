import { expect, test } from 'vitest'
import type { RunEvent } from './events'
import { RunHistory } from './history'
import { reduce, replay } from './reducer'

const TIME = Date.parse('2026-01-01T00:00:00Z')

function logOf(count: number): RunEvent[] {
  return Array.from({ length: count }, (_, index) => ({
    type: 'process_step',
    run_id: 'run',
    timestamp: new Date(TIME + index * 250).toISOString(),
    step: { id: `s${index}`, index, type: index % 3 === 0 ? 'thinking' : 'text', content: `Step ${index}`, status: 'ok' },
  })) as unknown as RunEvent[]
}

test('the state at a position is that of the events before it', () => {
  const events = logOf(200)
  const history = new RunHistory(events)
  for (const at of [0, 1, 63, 64, 65, 127, 128, 129, 199, 200]) {
    const plain = replay(events.slice(0, at).map((event, index) => ({ event, seq: index + 1 })))
    expect(history.stateAt(at), `position ${at}`).toEqual(plain)
  }
  expect(history.stateAt(-5)).toBe(history.stateAt(0))
  expect(history.stateAt(500).seq).toBe(200)
})

test('positions have the time since the first event', () => {
  const history = new RunHistory(logOf(5))
  expect([0, 1, 2, 5, 9].map((at) => history.offsetAt(at))).toEqual([0, 0, 250, 1000, 0])
  expect(new RunHistory([]).stateAt(3).seq).toBe(0)
})

test('ten thousand events of several kinds can be moved through anywhere', () => {
  const events = Array.from({ length: 10_000 }, (_, index) => {
    const timestamp = new Date(TIME + index).toISOString()
    const id = `c${index}`
    if (index % 10 === 0) return { type: 'cost_update', timestamp, usage: { total_tokens: index }, cost: index }
    if (index % 10 === 5) return { type: 'question_asked', timestamp, question_id: id, call_id: id, prompt: '?', options: [] }
    if (index % 10 === 6) return { type: 'question_answered', timestamp, question_id: `c${index - 1}`, answer: 'once' }
    return { type: 'process_step', timestamp, msg_id: `m${Math.floor(index / 50)}`, step: { id, index: index % 50, type: 'text', content: id } }
  }) as unknown as RunEvent[]
  const history = new RunHistory(events)
  let plain = replay([])
  events.forEach((event, index) => {
    plain = reduce(plain, event, index + 1)
    if (index % 487 === 0) expect(history.stateAt(index + 1)).toEqual(plain)
  })
  expect(history.stateAt(10_000)).toEqual(plain)
})
