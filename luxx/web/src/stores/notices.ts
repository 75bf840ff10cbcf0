/** Short messages at the edge of the page: of the server, or about what one just did. */
import { defineStore } from 'pinia'
import { ref } from 'vue'
import type { Question } from '@/run/state'

const SHOWN_MS = 8_000

export interface Notice {
  id: number
  kind: 'done' | 'failed' | 'waiting' | 'info'
  text: string
  /** An address of the UI that the notice leads to. */
  to?: string
  /** The run that it is about; a newer notice of the same run replaces it. */
  runId?: string
  /** What the run asks; it can be answered in the notice. */
  questions?: Question[]
}

export const useNotices = defineStore('notices', () => {
  const notices = ref<Notice[]>([])
  let lastId = 0

  /** One that waits for a person stays until it is closed. */
  function show(notice: Omit<Notice, 'id'>): void {
    const id = ++lastId
    const isReplaced = (each: Notice): boolean =>
      notice.runId ? each.runId === notice.runId : !each.runId && each.text === notice.text
    notices.value = [...notices.value.filter((each) => !isReplaced(each)), { ...notice, id }].slice(-4)
    if (notice.kind !== 'waiting') window.setTimeout(() => close(id), SHOWN_MS)
  }

  function showError(error: unknown): void {
    show({ kind: 'failed', text: error instanceof Error ? error.message : String(error) })
  }

  function close(id: number): void {
    notices.value = notices.value.filter((each) => each.id !== id)
  }

  /** Closes what waited for a person in runs that do not wait any more. */
  function keepWaiting(runIds: ReadonlySet<string>): void {
    notices.value = notices.value.filter((each) => each.kind !== 'waiting' || !each.runId || runIds.has(each.runId))
  }

  return { notices, show, keepWaiting, showError, close }
})
