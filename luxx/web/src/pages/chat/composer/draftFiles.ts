/** The files of messages that are not sent yet, kept by user and conversation in this browser's database. */
import { signedInUser } from '@/api/tokens'
import type { Schema } from '@/api/types'

const STORE = 'files'

export interface DraftFile {
  name: string
  size: number
  mediaType: string
  body: Schema<'AttachmentBody'>
}

let opening: Promise<IDBDatabase> | null = null

function open(): Promise<IDBDatabase> {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open('luxx.drafts', 1)
    request.onupgradeneeded = () => request.result.createObjectStore(STORE)
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(request.error)
  })
  return opening
}

async function run(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest): Promise<unknown> {
  const store = (await open()).transaction(STORE, mode).objectStore(STORE)
  return new Promise((resolve, reject) => {
    const request = work(store)
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(request.error)
  })
}

const keyOf = (user: string, key: string): string => `${user}.${key}`

/** Empty also where the browser has no database, as in some private windows. */
export async function readFiles(key: string): Promise<DraftFile[]> {
  const found = await run('readonly', (store) => store.get(keyOf(signedInUser(), key))).catch(() => undefined)
  return Array.isArray(found) ? (found as DraftFile[]) : []
}

export async function keepFiles(key: string, files: readonly DraftFile[]): Promise<void> {
  const user = signedInUser()
  if (!user) return
  const work = (store: IDBObjectStore): IDBRequest =>
    files.length
      ? store.put(
          files.map((file) => ({ ...file, body: { ...file.body } })),
          keyOf(user, key),
        )
      : store.delete(keyOf(user, key))
  await run('readwrite', work).catch(() => undefined)
}
