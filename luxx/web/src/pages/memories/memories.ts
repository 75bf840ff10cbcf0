/** Facts that Luxx remembers: the queries of the list, of one fact, of its changes and of what was read for facts. */
import { api, ask } from '@/api/client'
import { firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'

export type Fact = Schema<'Fact'>
export type MemoryChange = Schema<'MemoryChange'>
export type Episode = Schema<'Episode'>
export const MEMORIES_KEY = ['memories'] as const
export const CATEGORIES: readonly Fact['category'][] = ['preference', 'knowledge', 'history']
const PAGE_SIZE = 50
/** Changes of one fact, and episodes, that are shown. */
const SHOWN = 50

export function listFacts(words: string, pages: number, category: Fact['category'] | ''): Promise<{ items: Fact[]; hasMore: boolean }> {
  const query = { page_size: PAGE_SIZE, ...(words ? { q: words } : {}), ...(category ? { category } : {}) }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/memories', { params: { query: { ...query, page } } })))
}

export function readFact(id: string): Promise<Fact> {
  return ask(api.GET('/memories/{fact_id}', { params: { path: { fact_id: id } } }))
}

export async function changesOf(id: string): Promise<MemoryChange[]> {
  return (await ask(api.GET('/memories/changes', { params: { query: { fact_id: id, page_size: SHOWN } } }))).items
}

/** What could not be extracted, newest first. */
export async function listProblems(): Promise<Episode[]> {
  const read = (status: 'failed' | 'skipped') => ask(api.GET('/memories/episodes', { params: { query: { status, page_size: SHOWN } } }))
  const [failed, skipped] = await Promise.all([read('failed'), read('skipped')])
  return [...failed.items, ...skipped.items].sort((one, other) => other.happened_at.localeCompare(one.happened_at))
}

/** Where the message of a source is shown. */
export function pathOfSource(source: Fact['sources'][number]): string {
  if (source.conversation_id) return `/chat/${source.conversation_id}`
  return source.room_id ? `/rooms/${source.room_id}` : ''
}

/** A day as a date field has it, and as the server takes it: the beginning of the day in UTC. */
export function dayOf(time: string | null | undefined): string {
  return time ? time.slice(0, 10) : ''
}

export function timeOf(day: string): string | null {
  return day ? `${day}T00:00:00Z` : null
}
