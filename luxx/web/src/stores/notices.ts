/** Short messages in the tray: of the server, or about what one just did. What waits for a person is in `frame/waits.ts`. */
import { defineStore } from 'pinia'
import { ref } from 'vue'
import type { State } from '@/components/states'

const SHOWN_MS = 8_000

export interface Notice {
  id: number
  /** The state whose mark it has. */
  kind: State | 'info'
  text: string
  /** An address of the UI that the notice leads to. */
  to?: string
  /** The run or session that it is about; a newer notice of the same one replaces it. */
  runId?: string
}

export const useNotices = defineStore('notices', () => {
  const notices = ref<Notice[]>([])
  let lastId = 0

  function show(notice: Omit<Notice, 'id'>): void {
    const id = ++lastId
    const isReplaced = (each: Notice): boolean =>
      notice.runId ? each.runId === notice.runId : !each.runId && each.text === notice.text
    notices.value = [...notices.value.filter((each) => !isReplaced(each)), { ...notice, id }].slice(-4)
    window.setTimeout(() => close(id), SHOWN_MS)
  }

  function showError(error: unknown): void {
    show({ kind: 'failed', text: error instanceof Error ? error.message : String(error) })
  }

  function close(id: number): void {
    notices.value = notices.value.filter((each) => each.id !== id)
  }

  return { notices, show, showError, close }
})
