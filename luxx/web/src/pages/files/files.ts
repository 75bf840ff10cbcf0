/** The workspace of the signed-in user: folders, uploads with their progress, and downloads. */
import { api, ask } from '@/api/client'
import { postForm, readFile } from '@/api/files'
import { firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'

export type StoredFile = Schema<'FileView'>
export const PAGE_SIZE = 100
/** Longer texts are shown in part. */
export const PREVIEW_BYTES = 200_000
const IMAGE_BYTES = 10_000_000
const TEXT_TYPES = /^(text\/|application\/(json|xml|yaml|x-yaml|javascript|toml|x-sh|sql))/
const IMAGE_TYPES = /^image\/(png|jpeg|gif|webp)$/

export function listFolder(path: string, pages: number): Promise<{ items: StoredFile[]; hasMore: boolean }> {
  const query = { page_size: PAGE_SIZE, ...(path ? { path } : {}) }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/files', { params: { query: { ...query, page } } })))
}

export function previewKind(file: StoredFile): 'text' | 'image' | 'none' {
  if (IMAGE_TYPES.test(file.media_type)) return file.size <= IMAGE_BYTES ? 'image' : 'none'
  return TEXT_TYPES.test(file.media_type) ? 'text' : 'none'
}

export async function readText(file: StoredFile): Promise<{ text: string; isCut: boolean }> {
  const blob = await readFile(`/files/${file.id}`)
  return { text: await blob.slice(0, PREVIEW_BYTES).text(), isCut: blob.size > PREVIEW_BYTES }
}

/** Sends files into a folder. `onProgress` gets the share that is sent, 0 to 1. Raises Error with the server's reason. */
export function upload(files: readonly File[], path: string, onProgress: (share: number) => void): Promise<void> {
  const body = new FormData()
  for (const file of files) body.append('file', file)
  if (path) body.append('path', path)
  return postForm('/files', body, onProgress)
}
