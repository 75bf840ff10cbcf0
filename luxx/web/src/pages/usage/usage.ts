/** What is asked of the ledger, and its days without gaps. */
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'

export type Group = Schema<'UsageGroup'>
export type GroupBy = Schema<'GroupBy'>
export type Scope = Schema<'UsageScope'>

const DAY_MS = 86_400_000
/** The largest page of the API; more groups than that are summed but not listed. */
const PAGE_SIZE = 100

export interface Wanted {
  groupBy: GroupBy
  scope: Scope
  /** How many days, today included. */
  days: number
}

/** A day in UTC, as the ledger counts. */
export function dayOf(time: number): string {
  return new Date(time).toISOString().slice(0, 10)
}

export function readUsage({ groupBy, scope, days }: Wanted): Promise<Schema<'UsageReport'>> {
  const now = Date.now()
  const query = { group_by: groupBy, scope, from: dayOf(now - (days - 1) * DAY_MS), to: dayOf(now), page_size: PAGE_SIZE }
  return ask(api.GET('/usage', { params: { query } }))
}

/** All days of the period, the oldest first; those without a call have null. */
export function eachDay(groups: readonly Group[], days: number): { day: string; group: Group | null }[] {
  const now = Date.now()
  const known = new Map(groups.map((group) => [group.key, group]))
  return Array.from({ length: days }, (_, index) => {
    const day = dayOf(now - (days - 1 - index) * DAY_MS)
    return { day, group: known.get(day) ?? null }
  })
}
