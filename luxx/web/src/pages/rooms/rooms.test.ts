import { describe, expect, test } from 'vitest'
import type { RunEvent } from '@/run/events'
import { reduce, replay } from '@/run/reducer'
import { EMPTY, type RunState } from '@/run/state'
import { emptySeat, changesOf, draftOf, freeName } from './seats/seats'
import { editStop, newGroup, newLeaf, progressOf, type Stop, stopOf } from './stops'
import { blocksOf, initialsOf, notesOf, type StoredMessage, transcriptOf } from './transcript'

interface Framed {
  event: RunEvent
  seq: number | null
}

const START = Date.parse('2026-11-23T09:00:00.000Z')

/** An id of the kind that the server makes, so many milliseconds after the start. */
function idAfter(ms: number): string {
  const time = (START + ms).toString(16).padStart(12, '0')
  return `${time.slice(0, 8)}-${time.slice(8)}-7000-8000-000000000000`
}

const ANN = idAfter(10)
const BEN = idAfter(11)
const EVE = idAfter(500)

function frame(seq: number | null, ms: number, event: object): Framed {
  const timestamp = new Date(START + ms).toISOString()
  return { seq, event: { run_id: 'r', timestamp, ...event } as unknown as RunEvent }
}

function begins(seq: number, ms: number, id: string, seat: number, name: string, round: number): Framed {
  return frame(seq, ms, { type: 'message_start', msg_id: id, seat_id: seat, sender_name: name, sender_color: '#111111', round_number: round })
}

function ends(seq: number, ms: number, id: string, content: string, status = 'complete'): Framed {
  return frame(seq, ms, { type: 'message_end', msg_id: id, content, token_count: 1, status, finish: 'stop' })
}

function chunk(id: string, content: string, isSnapshot = false): Framed {
  return frame(null, 0, { type: 'message_chunk', msg_id: id, content, ...(isSnapshot ? { is_snapshot: true } : {}) })
}

function said(seq: number, ms: number, id: string, seat: number | null, name: string, content: string): Framed {
  return frame(seq, ms, { type: 'message', message: { id, seat_id: seat, content, sender_name: name, round_number: 1 } })
}

/** Two speak at once, a person speaks meanwhile, the room is paused and goes on. */
const ROOM: Framed[] = [
  frame(1, 0, { type: 'room_started', room_id: 'o', task: 'Talk.' }),
  frame(2, 1, { type: 'round_start', round: 1, max_rounds: 2 }),
  begins(3, 10, ANN, 1, 'Ann', 1),
  begins(4, 11, BEN, 2, 'Ben', 1),
  chunk(ANN, 'Hel'),
  chunk(BEN, 'Good '),
  chunk(ANN, 'lo'),
  said(5, 100, idAfter(100), null, 'carol', 'Be short.'),
  frame(6, 200, { type: 'steered', action: 'pause', user: 'carol', turns: [ANN, BEN] }),
  ends(7, 201, ANN, 'Hello', 'partial'),
  said(8, 201, ANN, 1, 'Ann', 'Hello'),
  ends(9, 202, BEN, 'Good ', 'partial'),
  said(10, 202, BEN, 2, 'Ben', 'Good '),
  frame(11, 203, { type: 'room_paused', round: 1 }),
  begins(12, 500, EVE, 3, 'Eve', 1),
  chunk(EVE, 'So'),
  ends(13, 600, EVE, 'So be it.'),
  said(14, 600, EVE, 3, 'Eve', 'So be it.'),
  frame(15, 601, { type: 'round_end', round: 1 }),
  frame(16, 602, { type: 'room_completed', stop_reason: 'rounds', rounds: 1 }),
]
const LOGGED = ROOM.filter(({ seq }) => seq !== null)

function shown(state: RunState): string[] {
  return blocksOf(transcriptOf([], state), notesOf(state), true).map(({ note, isParallel, entries }) =>
    note ? note.event.type : `${isParallel ? '|' : ''}${entries.map(({ name, text }) => `${name}: ${text}`).join(' | ')}`,
  )
}

describe('the transcript of a run', () => {
  test('is the same live, after a refresh at any event, and in a replay', () => {
    const whole = shown(replay(ROOM))
    expect(whole).toEqual(['Ann: Hello', 'Ben: Good ', 'carol: Be short.', 'steered', 'Eve: So be it.'])
    expect(shown(replay(LOGGED))).toEqual(whole)
    for (let cut = 0; cut <= ROOM.length; cut++) {
      const last = Math.max(0, ...ROOM.slice(0, cut).map(({ seq }) => seq ?? 0))
      const rest = LOGGED.filter(({ seq }) => (seq ?? 0) > last)
      expect(shown(replay([...ROOM.slice(0, cut), ...rest])), `cut at ${cut}`).toEqual(whole)
    }
  })

  test('has speakers side by side while one of them speaks, and people below', () => {
    const speaking = replay(ROOM.slice(0, 8))
    expect(shown(speaking)).toEqual(['|Ann: Hello | Ben: Good ', 'carol: Be short.'])
    const oneIsDone = reduce(speaking, (ends(6, 200, ANN, 'Hello') as Framed).event, 6)
    expect(shown(oneIsDone)[0]).toBe('|Ann: Hello | Ben: Good ')
    expect(blocksOf(transcriptOf([], speaking), [], true).map((block) => block.round)).toEqual([1, null])
  })

  test('replaces a growing text by a snapshot, and drops it where its process is lost', () => {
    const attached = replay([begins(1, 10, ANN, 1, 'Ann', 1), chunk(ANN, 'lost'), chunk(ANN, 'Hello', true), chunk(ANN, ' you')])
    expect(transcriptOf([], attached)[0]?.text).toBe('Hello you')
    expect(transcriptOf([], reduce(attached, chunk(ANN, '', true).event, null))[0]?.text).toBe('')
  })

  test('takes stored messages where the run has nothing better, each once', () => {
    const stored = [
      { id: idAfter(-900), role: 'assistant', content: 'Before.', sender_name: 'Ann', steps: [], round_number: 1 },
      { id: ANN, role: 'assistant', content: 'Hello', sender_name: 'Ann', steps: [], status: 'complete', round_number: 1 },
    ] as unknown as StoredMessage[]
    const opened = replay([begins(1, 10, ANN, 1, 'Ann', 1), chunk(ANN, 'Hel')])
    expect(transcriptOf(stored, opened).map(({ text }) => text)).toEqual(['Before.', 'Hello'])
    expect(transcriptOf(stored, EMPTY)).toHaveLength(2)
  })

  test('keeps the entry of a turn that did not change, so that it is not drawn again', () => {
    const before = replay(ROOM.slice(0, 6))
    const after = reduce(before, chunk(BEN, 'day').event, null)
    const [first, second] = transcriptOf([], before)
    expect(transcriptOf([], after)[0]).toBe(first)
    expect(transcriptOf([], after)[1]).not.toBe(second)
  })
})

const STOPS: Stop[] = [
  { rounds: 3 },
  { cost: 0.5 },
  { person: true },
  { phrase: 'DONE', seat_id: 4 },
  { any: [{ rounds: 3 }, { phrase: 'DONE' }] },
  { all: [{ messages: 20 }, { any: [{ tokens: 50_000 }, { seconds: 600 }] }] },
]

describe('the editor of a stop', () => {
  test.each(STOPS)('saves what it read: %j', (stop) => {
    expect(stopOf(editStop(stop, 10))).toEqual(stop)
  })

  test('saves nothing that is not filled in', () => {
    expect(stopOf(editStop(null, 7))).toEqual({ rounds: 7 })
    for (const amount of ['', '0', '-1', 'x', '1.5']) expect(stopOf(newLeaf('rounds', amount)), amount).toBeNull()
    expect(stopOf(newGroup('any', [newLeaf('rounds', '2'), newLeaf('phrase')]))).toBeNull()
    expect(stopOf(newGroup('all', []))).toBeNull()
  })

  test('shows the condition that is nearest to its end first', () => {
    const totals = { rounds: 2, messages: 4, tokens: 40_000, cost: 0 }
    const progress = progressOf({ any: [{ rounds: 5 }, { phrase: 'DONE' }, { tokens: 50_000 }] }, totals)
    expect(progress.map(({ kind, value }) => [kind, value])).toEqual([
      ['tokens', 40_000],
      ['rounds', 2],
      ['phrase', null],
    ])
  })
})

test('the form of a seat sends only what was changed, and null for what follows the agent again', () => {
  const seat = {
    id: 1,
    agent_id: 2,
    name: 'Ann',
    role: 'writes',
    model: 'big',
    system_prompt: 'Write.',
    tools: ['file_read'],
    skills: null,
    temperature: 0.2,
    provider_id: null,
    max_tokens: null,
    max_iterations: null,
    thinking_enabled: true,
    overrides: ['temperature'],
  } as unknown as Parameters<typeof draftOf>[0]
  const draft = draftOf(seat)
  expect(draft).toMatchObject({ role: '', temperature: '0.2', hasTools: false, thinking: '' })
  expect(changesOf(draft, draft)).toEqual({})
  const changed = { ...draft, temperature: '', role: 'edits', hasTools: true }
  expect(changesOf(draft, changed)).toEqual({ temperature: null, role: 'edits', tools: [] })
  expect(changesOf(emptySeat('A'), { ...emptySeat('B'), thinking: 'off' })).toEqual({ name: 'B', thinking_enabled: false })
})

test('names of seats stay unique without regard to letter case, and have initials', () => {
  expect(freeName('Ann', ['ann', 'Ann 2'])).toBe('Ann 3')
  expect(['Ann', 'Mary Ann', '编辑', 'x'].map(initialsOf)).toEqual(['An', 'MA', '编', 'X'])
})
