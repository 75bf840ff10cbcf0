/** The messages of a conversation: a path through its tree, of which the newest part, or a part around one message, is loaded. */
import { computed, shallowRef } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'

export type Message = Schema<'MessageView'>

/** A message that a person wrote anew. `saved` is called once the server has it, `refused` if it does not take it. */
export interface Edit {
  content: string
  saved: () => void
  refused: (error: unknown) => void
}

const FIRST_LIMIT = 60
const MORE_LIMIT = 100

export function useMessages(conversationId: () => string) {
  const byId = shallowRef<ReadonlyMap<string, Message>>(new Map())
  const tree = shallowRef<Schema<'ConversationTree'> | null>(null)
  const isLoaded = shallowRef(false)
  /** The message around which messages are shown; null: those at the end. */
  const anchor = shallowRef<string | null>(null)
  /** The last message of a branch that is looked at; null: the selected one. It is no choice, so the server does not know it. */
  const viewedLeaf = shallowRef<string | null>(null)
  let isLoadingMore = false

  const nodes = computed(() => new Map((tree.value?.nodes ?? []).map((node) => [node.id, node])))
  /** The ids of the messages that answer each message, oldest first; those of null are the first ones. */
  const children = computed(() => {
    const found = new Map<string | null, string[]>()
    for (const { id, parent_id } of tree.value?.nodes ?? []) {
      const ids = found.get(parent_id)
      if (ids) ids.push(id)
      else found.set(parent_id, [id])
    }
    return found
  })
  const shownIds = computed(() => (viewedLeaf.value === null ? (tree.value?.selected_path ?? []) : pathTo(viewedLeaf.value)))
  /** The part of the path that is shown: messages that are loaded, without a gap. `end` is excluded. */
  const part = computed(() => {
    const ids = shownIds.value
    const isThere = (index: number): boolean => byId.value.has(ids[index] ?? '')
    let start = anchor.value === null ? ids.length : ids.indexOf(anchor.value)
    if (anchor.value === null) while (start > 0 && !isThere(start - 1)) start--
    let end = Math.max(start, 0)
    start = end
    while (start > 0 && isThere(start - 1)) start--
    while (end < ids.length && isThere(end)) end++
    return { start, end }
  })
  const path = computed<Message[]>(() =>
    shownIds.value.slice(part.value.start, part.value.end).flatMap((id) => {
      const message = byId.value.get(id)
      return message ? [message] : []
    }),
  )
  const hasMore = computed(() => part.value.start > 0)
  /** Later messages of the path follow what is shown. */
  const hasLater = computed(() => anchor.value !== null && part.value.end < shownIds.value.length)

  function pathTo(leaf: string): string[] {
    const found: string[] = []
    for (let id: string | null = leaf; id !== null; id = nodes.value.get(id)?.parent_id ?? null) found.unshift(id)
    return found
  }

  const idsAfter = (parentId: string | null): string[] => children.value.get(parentId) ?? []

  /** The end of the branch of a message, as the server chooses it when one selects the message. */
  function newestLeafUnder(id: string): string {
    let newest = ''
    const open = [id]
    for (let each = open.pop(); each !== undefined; each = open.pop()) {
      const answers = idsAfter(each)
      open.push(...answers)
      if (!answers.length && each > newest) newest = each
    }
    return newest
  }

  async function load(): Promise<void> {
    const id = conversationId()
    const [found, foundTree] = await Promise.all([listMessages(id, FIRST_LIMIT), loadTree(id)])
    if (id !== conversationId()) return
    const selectedBefore = tree.value?.selected_leaf_id
    byId.value = new Map([...byId.value, ...found.items.map((message) => [message.id, message] as const)])
    tree.value = foundTree
    // What is answered or chosen meanwhile is what there is to see.
    if (foundTree.selected_leaf_id !== selectedBefore || !nodes.value.has(viewedLeaf.value ?? '')) viewedLeaf.value = null
    if (anchor.value !== null && !shownIds.value.includes(anchor.value)) anchor.value = null
    isLoaded.value = true
    // A newly selected branch can have messages that are older than what is loaded.
    if (anchor.value === null) await loadAll(shownIds.value.slice(-FIRST_LIMIT))
  }

  /** Loads those of these messages that are not there, from the newest on. */
  async function loadAll(ids: string[]): Promise<void> {
    const id = conversationId()
    let order: string[] = []
    for (;;) {
      const missing = ids.filter((each) => !byId.value.has(each)).sort()
      const [first, last] = [missing[0], missing.at(-1)]
      if (first === undefined || last === undefined) return
      if (!order.length) order = [...nodes.value.keys()].sort()
      const next = order.indexOf(last) + 1
      const limit = Math.min(next - order.indexOf(first), MORE_LIMIT)
      const found = await listMessages(id, limit, order[next])
      if (id !== conversationId()) return
      byId.value = new Map([...byId.value, ...found.items.map((message) => [message.id, message] as const)])
      if (!byId.value.has(last)) return // It was deleted meanwhile.
    }
  }

  async function loadMore(ids: () => string[]): Promise<void> {
    if (isLoadingMore) return
    isLoadingMore = true
    try {
      await loadAll(ids())
    } finally {
      isLoadingMore = false
    }
  }

  const loadOlder = (): Promise<void> => loadMore(() => shownIds.value.slice(Math.max(0, part.value.start - MORE_LIMIT), part.value.start))
  const loadLater = (): Promise<void> => loadMore(() => shownIds.value.slice(part.value.end, part.value.end + MORE_LIMIT))

  /** Shows the messages around one, on its branch, without selecting that. Returns whether the message exists. */
  async function showAround(id: string): Promise<boolean> {
    if (!nodes.value.has(id)) return false
    const selected = tree.value?.selected_path ?? []
    const leaf = selected.includes(id) ? null : newestLeafUnder(id)
    const ids = leaf === null ? selected : pathTo(leaf)
    const index = ids.indexOf(id)
    await loadAll(ids.slice(Math.max(0, index - FIRST_LIMIT / 2), index + FIRST_LIMIT / 2))
    if (!byId.value.has(id)) return false
    viewedLeaf.value = leaf
    anchor.value = id
    return true
  }

  /** Shows the end of the path again. */
  async function showEnd(): Promise<void> {
    await loadAll(shownIds.value.slice(-FIRST_LIMIT))
    anchor.value = null
  }

  /** Shows the end of the selected path again. */
  function leaveView(): Promise<void> {
    viewedLeaf.value = null
    return showEnd()
  }

  function reset(): void {
    byId.value = new Map()
    tree.value = null
    isLoaded.value = false
    anchor.value = null
    viewedLeaf.value = null
  }

  /** The last message of the path, whether it is loaded or not. */
  const lastId = computed(() => shownIds.value.at(-1))

  /** The messages that take the same place, and which of them this is. */
  function siblingsOf(message: Message): { ids: string[]; index: number } {
    const ids = idsAfter(message.parent_id)
    return { ids, index: ids.indexOf(message.id) }
  }

  return {
    path,
    lastId,
    tree,
    isLoaded,
    hasMore,
    hasLater,
    viewedLeaf,
    load,
    loadOlder,
    loadLater,
    showAround,
    showEnd,
    leaveView,
    reset,
    siblingsOf,
  }
}

function listMessages(conversationId: string, limit: number, before?: string): Promise<Schema<'MessagePage'>> {
  const query = { conversation_id: conversationId, limit, ...(before ? { before } : {}) }
  return ask(api.GET('/messages', { params: { query } }))
}

function loadTree(conversationId: string): Promise<Schema<'ConversationTree'>> {
  const params = { path: { conversation_id: conversationId }, query: { is_brief: true } }
  return ask(api.GET('/conversations/{conversation_id}/tree', { params }))
}
