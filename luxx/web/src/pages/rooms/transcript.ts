/** The transcript of a room: stored messages and the turns of the run that is followed, as one list. */
import type { Schema } from '@/api/types'
import type { Step } from '@/run/events'
import type { LiveStep, Question, RunNote, RunState, Turn } from '@/run/state'
import { memoriesIn, type Verdict, verdictsIn } from '@/run/steps'

export type StoredMessage = Schema<'MessageView'>

export interface Entry {
  id: string
  isPerson: boolean
  name: string
  seatId: number | null
  round: number
  text: string
  /** Thinking, tools and refused answers; the text is in `text`. */
  steps: readonly (Step | LiveStep)[]
  /** Why there is no text. */
  notice: string
  status: 'open' | 'complete' | 'partial'
  finish: string | null
  model: string | null
  provider: string | null
  tokenCount: number
  createdAt: string | null
  error: string | null
  questions: readonly Question[]
  notes: readonly RunNote[]
  verdicts: readonly Verdict[]
  memories: readonly string[]
  /** The message that this one answers, and how it begins; null if that was deleted. */
  reply: { id: string; quoted: Schema<'Quotation'> | null } | null
}

/** Ids are in the order of time, a seat's from when it took the floor; so one order holds for all. */
export function transcriptOf(stored: readonly StoredMessage[], live: RunState): Entry[] {
  const entries = new Map<string, Entry>()
  for (const message of stored) entries.set(message.id, ofStored(message))
  for (const key of live.turnOrder) {
    const turn = live.turns[key]
    if (!turn?.seatId || (turn.status === 'open' && entries.get(key)?.status === 'complete')) continue
    entries.set(key, ofTurn(turn, live))
  }
  for (const message of live.messages) {
    if (message.seat_id === null && !entries.has(message.id)) entries.set(message.id, ofPerson(message))
  }
  return [...entries.values()].toSorted((a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0))
}

/** Notes that are shown elsewhere than among the notes. */
const APART: ReadonlySet<string> = new Set(['agent_error', 'verdict', 'memory_recalled'])

const kept = new WeakMap<object, { questions: string; entry: Entry }>()

/** The same turn gives the same entry, so that only what changed is drawn again. */
function ofTurn(turn: Turn, live: RunState): Entry {
  const questions = Object.values(live.questions).filter((question) => question.asked.msg_id === turn.key)
  const notes = live.notes.filter((note) => note.turnKey === turn.key && !APART.has(note.event.type))
  const verdicts = verdictsIn(live.notes, turn.key)
  const mark = `${questions.map((each) => Number(each.answered !== null)).join('')} ${notes.length} ${verdicts.length}`
  const present = kept.get(turn)
  if (present?.questions === mark) return present.entry
  const entry: Entry = {
    id: turn.key,
    isPerson: false,
    name: turn.senderName,
    seatId: turn.seatId,
    round: turn.round,
    text: turn.text,
    steps: turn.steps.filter((step) => step.type !== 'text' || step.superseded),
    notice: noticeOf(turn.steps),
    status: turn.status,
    finish: turn.finish,
    model: turn.model,
    provider: turn.provider,
    tokenCount: turn.tokenCount,
    createdAt: timeOf(turn.key),
    error: turn.error?.message ?? null,
    questions,
    notes,
    verdicts,
    memories: memoriesIn(live.notes, turn.key),
    reply: null,
  }
  kept.set(turn, { questions: mark, entry })
  return entry
}

function ofStored(message: StoredMessage): Entry {
  const present = kept.get(message)
  if (present) return present.entry
  const entry: Entry = {
    id: message.id,
    isPerson: message.role === 'user',
    name: message.sender_name ?? '',
    seatId: null,
    round: message.round_number ?? 0,
    text: message.content,
    steps: message.steps.filter((step) => step.type !== 'text' || step.superseded),
    notice: noticeOf(message.steps),
    status: message.status === 'partial' ? 'partial' : 'complete',
    finish: message.finish,
    model: message.model,
    provider: message.provider_name,
    tokenCount: message.token_count,
    createdAt: message.created_at,
    error: null,
    questions: [],
    notes: [],
    verdicts: message.verdicts ?? [],
    memories: message.memories_used ?? [],
    reply: replyIn(message),
  }
  kept.set(message, { questions: '', entry })
  return entry
}

function replyIn({ reply_to: id, quoted }: Pick<StoredMessage, 'reply_to' | 'quoted'>): Entry['reply'] {
  return id ? { id, quoted: quoted ?? null } : null
}

function noticeOf(steps: readonly Step[]): string {
  return steps
    .map((step) => step.notice ?? '')
    .filter(Boolean)
    .join(' ')
}

function ofPerson(message: Schema<'RoomMessage'>): Entry {
  const present = kept.get(message)
  if (present) return present.entry
  const entry: Entry = {
    id: message.id,
    isPerson: true,
    name: message.sender_name,
    seatId: null,
    round: message.round_number ?? 0,
    text: message.content,
    steps: [],
    notice: '',
    status: 'complete',
    finish: null,
    model: null,
    provider: null,
    tokenCount: 0,
    createdAt: timeOf(message.id),
    error: null,
    questions: [],
    notes: [],
    verdicts: [],
    memories: [],
    reply: replyIn(message),
  }
  kept.set(message, { questions: '', entry })
  return entry
}

export type NoteLine = RunNote & { id: string }

/** Lines between the messages: who paused, skipped or got the floor, and warnings. */
export function notesOf(live: RunState): NoteLine[] {
  const between = live.notes.filter((note) => !note.turnKey || !live.turns[note.turnKey]?.seatId)
  return between.map((note) => ({ ...note, id: idAt(Date.parse(note.event.timestamp)) }))
}

/** The beginning of the ids that are made at this time. */
function idAt(milliseconds: number): string {
  const time = milliseconds.toString(16).padStart(12, '0')
  return `${time.slice(0, 8)}-${time.slice(8)}`
}

function timeOf(id: string): string | null {
  const time = Number.parseInt(id.replace('-', '').slice(0, 12), 16)
  return Number.isNaN(time) ? null : new Date(time).toISOString()
}

export interface Block {
  key: string
  /** Before this block a new round begins. */
  round: number | null
  entries: Entry[]
  /** Speakers side by side: several of one round who speak at once. */
  isParallel: boolean
  note: NoteLine | null
}

/** Entries one below the other; those of a round in which several speak now, side by side. */
export function blocksOf(entries: readonly Entry[], notes: readonly NoteLine[], isParallelPolicy: boolean): Block[] {
  const open = entries.filter((entry) => entry.status === 'open')
  const round = open.at(-1)?.round ?? 0
  const isTogether = open.length > 1 || (isParallelPolicy && open.length > 0)
  const blocks: Block[] = []
  const left = [...notes]
  let shownRound = 0
  const addNotes = (before: string | null): void => {
    while (left[0] && (before === null || left[0].id <= before)) {
      const note = left.shift() as NoteLine
      blocks.push({ key: `note-${note.seq}`, round: null, entries: [], isParallel: false, note })
    }
  }
  for (const entry of entries) {
    const isSide = isTogether && !entry.isPerson && entry.round === round
    const side = isSide ? blocks.findLast((block) => block.isParallel) : undefined
    if (side) {
      side.entries.push(entry)
      continue
    }
    addNotes(entry.id)
    const isNewRound = !entry.isPerson && entry.round > 0 && entry.round !== shownRound
    if (isNewRound) shownRound = entry.round
    const newRound = isNewRound ? entry.round : null
    blocks.push({ key: entry.id, round: newRound, entries: [entry], isParallel: isSide, note: null })
  }
  addNotes(null)
  return blocks.map((block) => (block.isParallel && block.entries.length < 2 ? { ...block, isParallel: false } : block))
}

/** Initials of a name: two letters, or the first character of a Chinese name. */
export function initialsOf(name: string): string {
  const words = name
    .trim()
    .split(/[\s\-_]+/)
    .filter(Boolean)
  const first = [...(words[0] ?? '?')]
  if (/\p{Script=Han}/u.test(first[0] ?? '')) return first[0] ?? '?'
  const second = words[1] ? ([...words[1]][0] ?? '') : (first[1] ?? '')
  return words[1] ? `${first[0]}${second}`.toUpperCase() : `${(first[0] ?? '').toUpperCase()}${second}`
}

/** The colour of each speaker by its name, in the order in which the seats were made; then of those who left. */
export function seatColors(seats: readonly { id: number; name: string }[], entries: readonly Entry[]): Map<string, number> {
  const colors = new Map<string, number>()
  const add = (name: string): void => {
    if (!colors.has(name)) colors.set(name, (colors.size % 12) + 1)
  }
  for (const seat of seats.toSorted((a, b) => a.id - b.id)) add(seat.name)
  for (const entry of entries) if (!entry.isPerson) add(entry.name)
  return colors
}
