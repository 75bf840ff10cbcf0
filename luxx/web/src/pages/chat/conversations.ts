/** The list of conversations: one query for the list pane, and the changes that it shows at once. */
import { api, ask, failureOf, signedFetch } from '@/api/client'
import { saveFile } from '@/api/files'
import { firstPages } from '@/api/lists'
import { useReload } from '@/api/queries'
import type { Schema } from '@/api/types'
import { useChatText } from '@/i18n/en/chat'

export type Conversation = Schema<'ConversationView'>
export const LIST_KEY = ['conversations'] as const
export const PROJECTS_KEY = ['projects'] as const
const PAGE_SIZE = 50
/** What the server calls a conversation before its first message. */
const UNTITLED = 'New conversation'

/** The title as it is shown: that of the server is translated. */
export const titleOf = (title: string): string => (title && title !== UNTITLED ? title : useChatText().untitled)

export interface ListFilter {
  isArchived: boolean
  /** Empty: all. */
  projectId: string
  tag: string
}

/** Those that fit, newest activity first; with words, those that contain them. */
export function listConversations(filter: ListFilter, words: string, pages: number): Promise<{ items: Conversation[]; hasMore: boolean }> {
  const query = {
    archived: filter.isArchived,
    sort: 'updated' as const,
    page_size: PAGE_SIZE,
    ...(words ? { q: words } : {}),
    ...(filter.projectId ? { project_id: filter.projectId } : {}),
    ...(filter.tag ? { tag: filter.tag } : {}),
  }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/conversations', { params: { query: { ...query, page } } })))
}

/** A message of a conversation in which words were found. */
export interface FoundMessage {
  id: string
  hit: Schema<'SearchHit'>
}

const MESSAGES_FOUND = 50

/** The conversations with the words in their titles, and, where no filter is set, the newest messages that have them. */
export async function findInConversations(
  filter: ListFilter,
  words: string,
  pages: number,
): Promise<{ items: (Conversation | FoundMessage)[]; hasMore: boolean }> {
  const isFiltered = filter.isArchived || filter.projectId !== '' || filter.tag !== ''
  const query = { q: words, kind: 'message' as const, sort: 'newest' as const, page_size: MESSAGES_FOUND }
  const [titles, messages] = await Promise.all([
    listConversations(filter, words, pages),
    words.length < 2 || isFiltered ? null : ask(api.GET('/search', { params: { query } })).catch(() => null),
  ])
  // Of each conversation the newest: the others are in it.
  const found = new Map<string, FoundMessage>()
  for (const hit of messages?.items ?? []) {
    const id = hit.conversation_id
    if (id !== null && !found.has(id)) found.set(id, { id: `message:${hit.message_id}`, hit })
  }
  return { items: [...titles.items, ...found.values()], hasMore: titles.hasMore }
}

/** Saves a conversation on the reader's machine. */
export function downloadConversation({ id, title }: Conversation, format: 'json' | 'md'): Promise<void> {
  return saveFile(`/conversations/${id}/export?format=${format}`, title || 'conversation', format)
}

/** Functions that change conversations and then load the lists again. */
export function useConversationChanges() {
  const reloadQueries = useReload()
  const reload = (): Promise<unknown> => reloadQueries(LIST_KEY)

  async function change(id: string, body: Schema<'ConversationChangeBody'>): Promise<Conversation> {
    const params = { path: { conversation_id: id } }
    const changed = await ask(api.PUT('/conversations/{conversation_id}', { params, body }))
    await reload()
    return changed
  }

  /** Its artifacts are kept in the gallery, or deleted too. */
  async function remove(id: string, artifacts: 'keep' | 'delete' = 'keep'): Promise<void> {
    const params = { path: { conversation_id: id }, query: { artifacts } }
    await ask(api.DELETE('/conversations/{conversation_id}', { params }))
    await reload()
  }

  /** Imports a file of Luxx, ChatGPT or Claude. */
  async function importFile(file: File): Promise<Schema<'ImportReport'>> {
    const body = new FormData()
    body.append('file', file)
    const address = new URL('/conversations/import', window.location.origin)
    const response = await signedFetch(new Request(address, { method: 'POST', body }))
    if (!response.ok) throw await failureOf(response)
    await reload()
    return ((await response.json()) as Schema<'Success_ImportReport'>).data
  }

  return { change, remove, reload, importFile }
}
