/** What models let the page do: short messages, lists that are loaded again, pages that are opened, and dialogs. */
import { useQueryCache } from '@pinia/colada'
import { defineStore } from 'pinia'
import { shallowRef } from 'vue'
import { useRouter } from 'vue-router'
import type { Schema } from '@/api/types'
import { type Notice, useNotices } from './notices'

type Payload = Readonly<Record<string, string>>

/** The queries of a list and of what its entries show. */
const KEYS: Readonly<Record<string, readonly string[]>> = {
  conversations: ['conversations', 'projects'],
  rooms: ['rooms', 'room'],
  tasks: ['tasks', 'task'],
  agents: ['agents'],
  skills: ['skills'],
  prompts: ['prompts'],
  knowledge: ['knowledge'],
  memories: ['memories', 'graph'],
  files: ['files'],
  runs: ['runs'],
}
const KINDS: Readonly<Record<string, Notice['kind']>> = { success: 'done', warning: 'waiting', error: 'failed' }

export interface ShownText {
  title: string
  text: string
}

export const useUiCommands = defineStore('uiCommands', () => {
  const notices = useNotices()
  const cache = useQueryCache()
  const router = useRouter()
  /** The dialog that is open. */
  const modal = shallowRef<ShownText | null>(null)

  /** Only for events that happen now, never for those of a replay. */
  function carryOut({ command, payload }: Schema<'UiCommand'>): void {
    if (command === 'refresh') refresh(payload)
    else if (command === 'toast') notices.show({ kind: KINDS[payload.type ?? ''] ?? 'info', text: payload.message ?? '' })
    else if (command === 'navigate') open(payload.path ?? '')
    else if (command === 'modal') modal.value = { title: payload.title ?? '', text: payload.text ?? '' }
  }

  function refresh({ target = '' }: Payload): void {
    for (const key of KEYS[target] ?? []) void cache.invalidateQueries({ key: [key] }).catch(() => undefined)
  }

  function open(path: string): void {
    const to = router.resolve(path)
    if (!to.meta.isSignedIn || to.name === 'missing' || to.fullPath === router.currentRoute.value.fullPath) return
    // Whoever types, or looks at another page of the browser, is not led away.
    if (isBusy() || document.visibilityState !== 'visible') notices.show({ kind: 'info', text: to.path, to: to.fullPath })
    else void router.push(to)
  }

  return { modal, carryOut }
})

/** Whether the reader writes in a field or a dialog is open. */
function isBusy(): boolean {
  const field = document.activeElement
  const words = field instanceof HTMLInputElement || field instanceof HTMLTextAreaElement ? field.value : ''
  return words.trim() !== '' || document.querySelector('[role="dialog"], [role="alertdialog"]') !== null
}
