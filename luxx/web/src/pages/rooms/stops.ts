/** The stop of a room as the editor changes it, and how far a run is from it. */
import type { Schema } from '@/api/types'

export type Stop = Schema<'Stop'>
export const AMOUNTS = ['rounds', 'messages', 'tokens', 'cost', 'seconds'] as const
export type AmountKind = (typeof AMOUNTS)[number]
export type StopKind = AmountKind | 'phrase' | 'person'
export const STOP_KINDS: readonly StopKind[] = [...AMOUNTS, 'phrase', 'person']
export const MAX_PARTS = 10
export const MAX_DEPTH = 4

/** One condition; `seat` is a seat's id, or in a new room the number of a seat. */
export interface StopLeaf {
  key: number
  kind: StopKind
  amount: string
  phrase: string
  seat: number | null
}

export interface StopGroup {
  key: number
  kind: 'any' | 'all'
  parts: StopPart[]
}

export type StopPart = StopLeaf | StopGroup

let lastKey = 0

export function isGroup(part: StopPart): part is StopGroup {
  return part.kind === 'any' || part.kind === 'all'
}

export function newLeaf(kind: StopKind, amount = ''): StopLeaf {
  return { key: ++lastKey, kind, amount, phrase: '', seat: null }
}

export function newGroup(kind: 'any' | 'all', parts: StopPart[]): StopGroup {
  return { key: ++lastKey, kind, parts }
}

export function isAmount(kind: string): kind is AmountKind {
  return (AMOUNTS as readonly string[]).includes(kind)
}

/** The editor always has a group at its top; a single stop is its only part. */
export function editStop(stop: Stop | null, maxRounds: number): StopGroup {
  const part = partOf(stop ?? { rounds: maxRounds })
  return isGroup(part) ? part : newGroup('any', [part])
}

function partOf(stop: Stop): StopPart {
  if (stop.any) return newGroup('any', stop.any.map(partOf))
  if (stop.all) return newGroup('all', stop.all.map(partOf))
  if (stop.phrase !== undefined) return { ...newLeaf('phrase'), phrase: stop.phrase, seat: stop.seat_id ?? null }
  const kind = AMOUNTS.find((each) => stop[each] !== undefined)
  return kind ? newLeaf(kind, String(stop[kind])) : newLeaf('person')
}

/** The stop of the API; null where something is not filled in. `seatOf` turns numbers of seats into ids. */
export function stopOf(part: StopPart, seatOf: (seat: number) => number = (seat) => seat): Stop | null {
  if (isGroup(part)) {
    const parts = part.parts.map((each) => stopOf(each, seatOf))
    const whole = parts.filter((each) => each !== null)
    if (whole.length === 0 || whole.length < parts.length) return null
    return whole.length === 1 ? (whole[0] ?? null) : part.kind === 'any' ? { any: whole } : { all: whole }
  }
  if (part.kind === 'person') return { person: true }
  if (part.kind === 'phrase') {
    if (!part.phrase.trim()) return null
    return part.seat === null ? { phrase: part.phrase } : { phrase: part.phrase, seat_id: seatOf(part.seat) }
  }
  const amount = Number(part.amount)
  const isWhole = part.kind === 'cost' || Number.isInteger(amount)
  return part.amount.trim() !== '' && amount > 0 && isWhole ? { [part.kind]: amount } : null
}

/** The seats that conditions of the stop name. */
export function seatsOf(part: StopPart): number[] {
  if (isGroup(part)) return part.parts.flatMap(seatsOf)
  return part.kind === 'phrase' && part.seat !== null ? [part.seat] : []
}

export interface StopTotals {
  rounds: number
  messages: number
  tokens: number
  cost: number
}

export interface StopProgress {
  kind: StopKind
  limit: number
  /** Null where it is not measured here. */
  value: number | null
  phrase: string
  seat: number | null
}

/** All conditions, the one that is nearest to its end first. */
export function progressOf(stop: Stop, totals: StopTotals): StopProgress[] {
  return leaves(stop)
    .map((leaf) => {
      const kind = AMOUNTS.find((each) => leaf[each] !== undefined)
      const value = kind && kind !== 'seconds' ? totals[kind] : null
      const limit = kind ? (leaf[kind] ?? 0) : 0
      const other = leaf.phrase === undefined ? 'person' : 'phrase'
      return { kind: kind ?? other, limit, value, phrase: leaf.phrase ?? '', seat: leaf.seat_id ?? null } as StopProgress
    })
    .toSorted((a, b) => share(b) - share(a))
}

export function share({ value, limit }: StopProgress): number {
  return value === null || !limit ? -1 : Math.min(1, value / limit)
}

function leaves(stop: Stop): Stop[] {
  const parts = stop.any ?? stop.all
  return parts ? parts.flatMap(leaves) : [stop]
}
