/** Runs: the queries of the list and of one run, and the log of a run that has ended. */
import { api, ask } from '@/api/client'
import { firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'
import type { RunEvent } from '@/run/events'

export type Run = Schema<'TitledRun'>
export const LIST_KEY = ['runs'] as const
export const PAGE_SIZE = 50
export const KINDS: readonly Run['kind'][] = ['chat', 'room', 'task', 'memory', 'index', 'artifact', 'pattern', 'title', 'follow_ups']
export const STATUSES: readonly Run['status'][] = ['running', 'waiting', 'paused', 'queued', 'completed', 'failed', 'cancelled']
/** Events of the log in one request. */
const LOG_PAGE = 1_000

export interface RunFilter {
  kind: Run['kind'] | ''
  status: Run['status'] | ''
  pages: number
}

export function listRuns({ kind, status, pages }: RunFilter): Promise<{ items: Run[]; hasMore: boolean }> {
  const query = { page_size: PAGE_SIZE, ...(kind ? { kind } : {}), ...(status ? { status } : {}) }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/runs', { params: { query: { ...query, page } } })))
}

export function subjectPath(run: Run): string {
  if (run.kind === 'memory') return '/memories'
  if (run.kind === 'index' || run.kind === 'pattern') return '/runs'
  return `/${{ chat: 'chat', room: 'rooms', task: 'tasks', artifact: 'files', title: 'chat', follow_ups: 'chat' }[run.kind]}/${run.subject_id}`
}

/** Milliseconds from the start to the end, or to now. */
export function durationOf(run: Run, now: number): number | null {
  if (run.started_at === null) return null
  return (run.finished_at ? Date.parse(run.finished_at) : now) - Date.parse(run.started_at)
}

/** All events of the log, in its order. */
export async function readLog(runId: string): Promise<RunEvent[]> {
  const events: RunEvent[] = []
  let next = 1
  for (let hasMore = true; hasMore;) {
    const query = { from_sequence: next, limit: LOG_PAGE }
    const answered = api.GET('/runs/{run_id}/events', { params: { path: { run_id: runId }, query } })
    const page = await ask(answered as Promise<{ data?: { data?: Schema<'LoggedEvents'>; success: true }; response: Response }>)
    events.push(...(page.events as RunEvent[]))
    next = (page.events.at(-1)?.seq ?? next) + 1
    hasMore = page.has_more && page.events.length > 0
  }
  return events
}
