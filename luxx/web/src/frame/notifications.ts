/** Notices of the server on whichever page one is, and how much waits for a person in each area. */
import { useQueryCache } from '@pinia/colada'
import { onScopeDispose, ref, watch } from 'vue'
import { useRoute } from 'vue-router'
import { api, ask } from '@/api/client'
import { isSocketOpen, type Notification, onNotification } from '@/api/socket'
import type { Schema } from '@/api/types'
import { useCommonText } from '@/i18n/en/common'
import type { Question } from '@/run/state'
import { useNotices } from '@/stores/notices'

/** By the name of an area. */
export const waitingCounts = ref<Record<string, number>>({})

const AREA_OF_KIND = { chat: 'chat', room: 'rooms', task: 'tasks' } as const
const REFRESH_MS = 60_000
/** Of the runs that began to wait while no socket was open, this many have a notice; the rail counts all. */
const MISSED_SHOWN = 3

/** The runs that wait for a person, the newest first; counts them. */
export async function listWaiting(): Promise<Schema<'Run'>[]> {
  const found = await ask(api.GET('/runs', { params: { query: { status: 'waiting', page_size: 100 } } }))
  const counts: Record<string, number> = {}
  for (const run of found.items) {
    const area = AREA_OF_KIND[run.kind]
    counts[area] = (counts[area] ?? 0) + 1
  }
  waitingCounts.value = counts
  return found.items
}

/** The questions of a run that wait for an answer. */
async function questionsOf(runId: string): Promise<Question[]> {
  const params = { path: { run_id: runId }, query: { page_size: 5 } }
  const found = await ask(api.GET('/runs/{run_id}/questions', { params }))
  return found.items
    .filter((question) => question.status === 'open')
    .map((question) => {
      const { id, created_at: timestamp } = question
      return { asked: { ...question, type: 'question_asked', question_id: id, timestamp }, answered: null }
    })
}

function addressOf(run: Schema<'Run'>): string {
  return `/${AREA_OF_KIND[run.kind]}/${run.subject_id}`
}

/** What the run belongs to, in the words of its person; empty without a title. */
async function titleOf({ kind, subject_id: id }: Schema<'Run'>): Promise<string> {
  if (kind === 'room') return (await ask(api.GET('/chat-rooms/{room_id}', { params: { path: { room_id: id } } }))).title
  if (kind === 'task') return (await ask(api.GET('/tasks/{task_id}', { params: { path: { task_id: id } } }))).name
  return (await ask(api.GET('/conversations/{conversation_id}', { params: { path: { conversation_id: id } } }))).title
}

/** Shows them while the component that calls this is there. */
export function showNotifications(): void {
  const text = useCommonText()
  const notices = useNotices()
  const route = useRoute()
  const cache = useQueryCache()
  const known = new Set<string>()

  async function refresh(): Promise<Schema<'Run'>[]> {
    const waiting = await listWaiting()
    const ids = new Set(waiting.map((run) => run.id))
    notices.keepWaiting(ids)
    for (const id of known) if (!ids.has(id)) known.delete(id)
    return waiting
  }

  /** Shows what began to wait while no socket was open. */
  async function catchUp(): Promise<void> {
    const missed = (await refresh()).filter((run) => !known.has(run.id) && addressOf(run) !== route.path)
    for (const run of missed.slice(0, MISSED_SHOWN).reverse()) {
      known.add(run.id)
      const [questions, title] = await Promise.all([questionsOf(run.id), titleOf(run).catch(() => '')])
      if (questions.length === 0) continue
      const shown = title || text.areas[AREA_OF_KIND[run.kind]]
      notices.show({ kind: 'waiting', text: shown, to: addressOf(run), runId: run.id, questions })
    }
  }

  async function showOne({ run_id: runId, status, title, message }: Notification): Promise<void> {
    const isWaiting = status === 'waiting'
    if (isWaiting) known.add(runId)
    void refresh().catch(ignore)
    const run = await ask(api.GET('/runs/{run_id}', { params: { path: { run_id: runId } } })).catch(ignore)
    const questions = isWaiting ? await questionsOf(runId).catch(() => []) : []
    const kind = isWaiting ? 'waiting' : status === 'failed' ? 'failed' : 'done'
    notices.show({ kind, text: `${title}: ${message}`, to: run && addressOf(run), runId, questions })
  }

  const timer = window.setInterval(() => void refresh().catch(ignore), REFRESH_MS)
  const stop = onNotification(showOne)
  let wasOpen = false
  watch(isSocketOpen, (isOpen) => {
    if (!isOpen) return
    void catchUp().catch(ignore)
    if (wasOpen) void cache.invalidateQueries()
    wasOpen = true
  })
  void refresh().catch(ignore)
  onScopeDispose(() => {
    window.clearInterval(timer)
    stop()
  })
}

function ignore(): undefined {
  return undefined
}
