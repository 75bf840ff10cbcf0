/** Knowledge bases: the queries of the list, of one base with its documents, and of the passages of a document. */
import { api, ask } from '@/api/client'
import { postForm } from '@/api/files'
import { firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'

export type KnowledgeBase = Schema<'BaseView'>
export type StoredDocument = Schema<'DocumentView'>
export type Passage = Schema<'ChunkView'>
export type FoundPassage = Schema<'FoundChunk'>
/** A place in a document: a page, a slide, or rows of a table. */
export type Place = Pick<Passage, 'page' | 'slide' | 'row' | 'last_row'>
export const KNOWLEDGE_KEY = ['knowledge'] as const
export const PAGE_SIZE = 50
/** The formats that are read. */
export const ACCEPTED = '.pdf,.docx,.pptx,.xlsx,.xls,.ods,.csv,.md,.txt,.html,.epub,.json,text/*'

export const pathOf = (baseId: string) => ({ path: { base_id: baseId } })
export const pathOfDocument = (baseId: string, documentId: string) => ({ path: { base_id: baseId, document_id: documentId } })

export function listBases(words: string, pages: number): Promise<{ items: KnowledgeBase[]; hasMore: boolean }> {
  const query = { page_size: PAGE_SIZE, ...(words ? { q: words } : {}) }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/knowledge', { params: { query: { ...query, page } } })))
}

export function listDocuments(baseId: string, pages: number): Promise<{ items: StoredDocument[]; hasMore: boolean }> {
  const read = (page: number) =>
    ask(api.GET('/knowledge/{base_id}/documents', { params: { ...pathOf(baseId), query: { page_size: PAGE_SIZE, page } } }))
  return firstPages(pages, PAGE_SIZE, read)
}

/** The passages of a document, in its order. */
export async function listPassages(baseId: string, documentId: string, pages: number): Promise<{ items: Passage[]; hasMore: boolean }> {
  const read = async (page: number) => {
    const params = { ...pathOfDocument(baseId, documentId), query: { page_size: PAGE_SIZE, page } }
    const found = await ask(api.GET('/knowledge/{base_id}/documents/{document_id}/chunks', { params }))
    return { ...found, items: found.items.map((each) => ({ ...each, id: each.position })) }
  }
  return firstPages(pages, PAGE_SIZE, read)
}

export async function searchBase(baseId: string, query: string): Promise<FoundPassage[]> {
  return (await ask(api.POST('/knowledge/{base_id}/search', { params: pathOf(baseId), body: { query } }))).items
}

/** Sends documents into a base. `onProgress` gets the share that is sent, 0 to 1. */
export function addDocuments(baseId: string, files: readonly File[], onProgress: (share: number) => void): Promise<void> {
  const body = new FormData()
  for (const file of files) body.append('file', file)
  return postForm(`/knowledge/${baseId}/documents`, body, onProgress)
}

/** A document that a run has not finished yet. */
export function isUnfinished({ status }: StoredDocument): boolean {
  return status === 'pending' || status === 'running'
}

/** Where a found passage is shown. */
export function addressOf(found: FoundPassage): string {
  const place = found.page ?? found.slide ?? found.row
  return `/knowledge/${found.base_id}/${found.document_id}${place === undefined ? '' : `?place=${place}`}`
}
