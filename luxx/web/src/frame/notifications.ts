/** Notices of the server on whichever page one is, and how much waits for a person in each area. */
import { onScopeDispose, ref } from 'vue'
import { api, ask } from '@/api/client'
import { onNotification } from '@/api/socket'
import type { Question } from '@/run/state'
import { useNotices } from '@/stores/notices'

/** By the name of an area. */
export const waitingCounts = ref<Record<string, number>>({})

const AREA_OF_KIND = { chat: 'chat', room: 'rooms', task: 'tasks' } as const
const REFRESH_MS = 60_000

export async function countWaiting(): Promise<void> {
  const found = await ask(api.GET('/runs', { params: { query: { status: 'waiting', page_size: 100 } } }))
  const counts: Record<string, number> = {}
  for (const run of found.items) {
    const area = AREA_OF_KIND[run.kind as keyof typeof AREA_OF_KIND]
    counts[area] = (counts[area] ?? 0) + 1
  }
  waitingCounts.value = counts
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

/** The address of the page of a run's conversation, room or task. */
async function addressOf(runId: string, sessionId: string): Promise<string> {
  const run = await ask(api.GET('/runs/{run_id}', { params: { path: { run_id: runId } } }))
  return `/${AREA_OF_KIND[run.kind as keyof typeof AREA_OF_KIND]}/${sessionId}`
}

/** Shows them while the component that calls this is there. */
export function showNotifications(): void {
  const notices = useNotices()
  const ignore = (): void => undefined
  const refresh = (): void => void countWaiting().catch(ignore)
  const timer = window.setInterval(refresh, REFRESH_MS)
  const stop = onNotification(async (notification) => {
    refresh()
    const to = await addressOf(notification.run_id, notification.session_id).catch(() => undefined)
    const kind = notification.status === 'waiting' ? 'waiting' : notification.status === 'failed' ? 'failed' : 'done'
    const questions = kind === 'waiting' ? await questionsOf(notification.run_id).catch(() => []) : []
    notices.show({ kind, text: `${notification.title}: ${notification.message}`, to, questions })
  })
  refresh()
  onScopeDispose(() => {
    window.clearInterval(timer)
    stop()
  })
}
