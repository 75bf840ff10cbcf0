/** The list of conversations: one query for the list pane, and the changes that it shows at once. */
import { useQueryCache } from '@pinia/colada'
import { api, ask, failureOf, signedFetch } from '@/api/client'
import { saveFile } from '@/api/files'
import type { Schema } from '@/api/types'

export type Conversation = Schema<'ConversationView'>
export const LIST_KEY = ['conversations'] as const
export const PROJECTS_KEY = ['projects'] as const
export const PAGE_SIZE = 50

export interface ListFilter {
  words: string
  isArchived: boolean
  /** Empty: all. */
  projectId: string
  tag: string
  pages: number
}

/** The first pages of the list, newest activity first. */
export async function listConversations(filter: ListFilter): Promise<{ items: Conversation[]; total: number }> {
  const query = {
    archived: filter.isArchived,
    sort: 'updated' as const,
    page_size: PAGE_SIZE,
    ...(filter.words ? { q: filter.words } : {}),
    ...(filter.projectId ? { project_id: filter.projectId } : {}),
    ...(filter.tag ? { tag: filter.tag } : {}),
  }
  const pages = Array.from({ length: filter.pages }, (_, index) => index + 1)
  const found = await Promise.all(pages.map((page) => ask(api.GET('/conversations', { params: { query: { ...query, page } } }))))
  const items = new Map(found.flatMap((each) => each.items.map((item) => [item.id, item])))
  return { items: [...items.values()], total: found[0]?.total ?? 0 }
}

/** Saves a conversation on the reader's machine. */
export function downloadConversation({ id, title }: Conversation, format: 'json' | 'md'): Promise<void> {
  return saveFile(`/conversations/${id}/export?format=${format}`, title || 'conversation', format)
}

/** Functions that change conversations and then load the lists again. */
export function useConversationChanges() {
  const cache = useQueryCache()
  const reload = (): Promise<unknown> => cache.invalidateQueries({ key: [...LIST_KEY] })

  async function change(id: string, body: Schema<'ConversationChangeBody'>): Promise<Conversation> {
    const params = { path: { conversation_id: id } }
    const changed = await ask(api.PUT('/conversations/{conversation_id}', { params, body }))
    await reload()
    return changed
  }

  async function remove(id: string): Promise<void> {
    await ask(api.DELETE('/conversations/{conversation_id}', { params: { path: { conversation_id: id } } }))
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
