/** The messages of a conversation: the selected path through its tree, of which the newest part is loaded. */
import { computed, shallowRef } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'

export type Message = Schema<'MessageView'>

const FIRST_LIMIT = 60
const MORE_LIMIT = 100

export function useMessages(conversationId: () => string) {
  const byId = shallowRef<ReadonlyMap<string, Message>>(new Map())
  const tree = shallowRef<Schema<'ConversationTree'> | null>(null)
  const hasMore = shallowRef(false)
  const isLoaded = shallowRef(false)
  let isLoadingOlder = false

  const nodes = computed(() => new Map((tree.value?.nodes ?? []).map((node) => [node.id, node])))
  /** From the oldest loaded message of the selected path on. */
  const path = computed<Message[]>(() =>
    (tree.value?.selected_path ?? []).flatMap((id) => {
      const message = byId.value.get(id)
      return message ? [message] : []
    }),
  )

  async function load(): Promise<void> {
    const id = conversationId()
    const [found, foundTree] = await Promise.all([listMessages(id, FIRST_LIMIT), loadTree(id)])
    if (id !== conversationId()) return
    byId.value = new Map([...byId.value, ...found.items.map((message) => [message.id, message] as const)])
    if (!isLoaded.value) hasMore.value = found.has_more
    tree.value = foundTree
    isLoaded.value = true
    await loadSelected()
  }

  /** A newly selected branch can have messages that are older than what is loaded. */
  async function loadSelected(): Promise<void> {
    const shown = tree.value?.selected_path ?? []
    while (hasMore.value && shown.slice(-FIRST_LIMIT).some((id) => !byId.value.has(id))) {
      if (!(await loadOlder())) return
    }
  }

  /** Returns whether there were any. */
  async function loadOlder(): Promise<boolean> {
    if (isLoadingOlder || !hasMore.value) return false
    isLoadingOlder = true
    try {
      const id = conversationId()
      const oldest = [...byId.value.keys()].sort()[0]
      const found = await listMessages(id, MORE_LIMIT, oldest)
      if (id !== conversationId()) return false
      byId.value = new Map([...found.items.map((message) => [message.id, message] as const), ...byId.value])
      hasMore.value = found.has_more
      return found.items.length > 0
    } finally {
      isLoadingOlder = false
    }
  }

  function reset(): void {
    byId.value = new Map()
    tree.value = null
    hasMore.value = false
    isLoaded.value = false
  }

  /** The messages that take the same place, and which of them this is. */
  function siblingsOf(message: Message): { ids: string[]; index: number } {
    const ids = message.parent_id
      ? (nodes.value.get(message.parent_id)?.children ?? [])
      : (tree.value?.nodes ?? []).filter((node) => node.parent_id === null).map((node) => node.id)
    return { ids, index: ids.indexOf(message.id) }
  }

  return { path, tree, isLoaded, hasMore, load, loadOlder, reset, siblingsOf }
}

function listMessages(conversationId: string, limit: number, before?: string): Promise<Schema<'MessagePage'>> {
  const query = { conversation_id: conversationId, limit, ...(before ? { before } : {}) }
  return ask(api.GET('/messages', { params: { query } }))
}

function loadTree(conversationId: string): Promise<Schema<'ConversationTree'>> {
  const params = { path: { conversation_id: conversationId } }
  return ask(api.GET('/conversations/{conversation_id}/tree', { params }))
}
