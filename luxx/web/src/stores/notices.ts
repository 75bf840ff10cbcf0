/** Short messages in the tray: of the server, or about what one just did. What waits for a person is in `frame/waits.ts`. */
import { defineStore } from 'pinia'
import { type Ref, ref } from 'vue'
import type { State } from '@/components/states'

const SHOWN_MS = 8_000
/** Besides, for each character: all problems of an imported file take longer to read. */
const READING_MS = 40

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
  /** Of the open dialogs, the last above the others. */
  const dialogs: Ref<string>[] = []
  let lastId = 0

  function show(notice: Omit<Notice, 'id'>): void {
    const id = ++lastId
    const isReplaced = (each: Notice): boolean => (notice.runId ? each.runId === notice.runId : !each.runId && each.text === notice.text)
    notices.value = [...notices.value.filter((each) => !isReplaced(each)), { ...notice, id }].slice(-4)
    window.setTimeout(() => close(id), SHOWN_MS + READING_MS * notice.text.length)
  }

  function showError(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error)
    const dialog = dialogs.at(-1)
    if (dialog) dialog.value = text
    else show({ kind: 'failed', text })
  }

  /** Until the returned function is called, errors are said in this dialog, which covers the tray. */
  function sayErrorsIn(dialog: Ref<string>): () => void {
    dialogs.push(dialog)
    return () => void dialogs.splice(dialogs.indexOf(dialog), 1)
  }

  const hasDialog = (): boolean => dialogs.length > 0

  function close(id: number): void {
    notices.value = notices.value.filter((each) => each.id !== id)
  }

  return { notices, show, showError, sayErrorsIn, hasDialog, close }
})
