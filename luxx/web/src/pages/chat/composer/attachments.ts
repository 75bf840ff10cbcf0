/** Files for a message: images go with it, others are uploaded into the workspace first. Each is checked at once. */
import { computed, ref, watch } from 'vue'
import { api, ApiError, ask, asApiError, failureOf, signedFetch } from '@/api/client'
import type { Schema } from '@/api/types'
import { useChatText } from '@/i18n/en/chat'
import { type DraftFile, keepFiles, readFiles } from './draftFiles'

/** Larger images are uploaded, because the body of a request is limited. */
const MAX_INLINE_BYTES = 4_000_000
/** The limits of a message; those of a single file are the server's. */
const MAX_FILES = 20
const MAX_IMAGES = 10
const MAX_IMAGES_BYTES = 15 * 2 ** 20
const IMAGE = /^image\/(png|jpeg|gif|webp)$/

export interface PendingFile {
  id: number
  name: string
  size: number
  mediaType: string
  /** For the picture in the composer. */
  preview: string | null
  body: Schema<'AttachmentBody'> | null
  /** Why it cannot be sent. */
  error: string
}

/** `key` names the message; `blindModel` is the name of the chosen model if that reads no images. */
export function useAttachments(key: () => string, blindModel: () => string) {
  const text = useChatText()
  const kept = ref<PendingFile[]>([])
  let lastId = 0
  /** Which files the message has that is being sent, and its key. */
  let taken = new Set<number>()
  let takenOf = ''
  let loading: Promise<void> = Promise.resolve()

  const files = computed<PendingFile[]>(() =>
    kept.value.map((file) => {
      const isUnread = IMAGE.test(file.mediaType) && blindModel() !== ''
      return isUnread && !file.error ? { ...file, error: text.imagesNotRead(blindModel()) } : file
    }),
  )
  const isUploading = computed(() => files.value.some((file) => !file.body && !file.error))
  const isRefused = computed(() => files.value.some((file) => file.error))

  watch(key, (now) => (loading = load(now)), { immediate: true })

  async function load(of: string): Promise<void> {
    kept.value = []
    const stored = await readFiles(of)
    if (of !== key() || stored.length === 0) return
    const restored = stored.map((file) => ({ ...file, id: ++lastId, preview: previewOf(file), error: '' }))
    kept.value = [...restored, ...kept.value]
  }

  function store(of: string): void {
    const finished = kept.value.flatMap(({ name, size, mediaType, body, error }) => (body && !error ? [{ name, size, mediaType, body }] : []))
    void keepFiles(of, finished)
  }

  function add(added: Iterable<File>): void {
    for (const file of added) void addOne(file, key())
  }

  /** A long text that was pasted. */
  function addText(content: string): void {
    const used = new Set(kept.value.map((file) => file.name))
    let number = 1
    while (used.has(text.pastedName(number))) number += 1
    const name = text.pastedName(number)
    const body = { name, content }
    const size = new Blob([content]).size
    kept.value = [...kept.value, { id: ++lastId, name, size, mediaType: 'text/plain', preview: null, body, error: '' }]
    try {
      checkCounts()
    } catch (error) {
      change(lastId, { error: asApiError(error).message })
    }
    store(key())
  }

  /** A file of the workspace. */
  function addStored(file: Schema<'FileView'>): void {
    if (kept.value.some((each) => each.body?.file_id === file.id)) return
    const { id: fileId, name, size, media_type: mediaType } = file
    const id = ++lastId
    kept.value = [...kept.value, { id, name, size, mediaType, preview: null, body: null, error: '' }]
    const of = key()
    const body = { file_id: fileId }
    ask(api.POST('/messages/attachments/check', { body: { attachments: [body] } })).then(
      () => {
        change(id, { body })
        if (of === key()) store(of)
      },
      (error: unknown) => change(id, { error: asApiError(error).message }),
    )
  }

  async function addOne(file: File, of: string): Promise<void> {
    const isImage = IMAGE.test(file.type) && file.size <= MAX_INLINE_BYTES
    const preview = isImage ? URL.createObjectURL(file) : null
    const name = file.name || `${file.type.replace('/', '.')}`
    const pending: PendingFile = { id: ++lastId, name, size: file.size, mediaType: file.type, preview, body: null, error: '' }
    kept.value = [...kept.value, pending]
    try {
      checkCounts()
      const body = isImage ? await imageBody(file, name) : await uploaded(file)
      change(pending.id, { body })
      if (of === key()) store(of)
    } catch (error) {
      change(pending.id, { error: asApiError(error).message, preview: null })
    }
  }

  /** Raises ApiError if there are more files than a message takes. */
  function checkCounts(): void {
    const usable = kept.value.filter((file) => !file.error)
    const images = usable.filter((file) => IMAGE.test(file.mediaType))
    const bytes = images.reduce((sum, file) => sum + file.size, 0)
    if (usable.length > MAX_FILES) throw new ApiError(text.tooManyFiles(MAX_FILES), 400, 'too_many_files')
    if (images.length > MAX_IMAGES || bytes > MAX_IMAGES_BYTES) {
      throw new ApiError(text.tooManyImages(MAX_IMAGES, MAX_IMAGES_BYTES / 2 ** 20), 413, 'too_large')
    }
  }

  async function imageBody(file: File, name: string): Promise<Schema<'AttachmentBody'>> {
    // What only says that it is an image.
    await createImageBitmap(file).then(
      (bitmap) => bitmap.close(),
      () => {
        throw new ApiError(text.imageBroken, 400, 'attachment_unreadable')
      },
    )
    return { name, media_type: file.type, data: await base64(file) }
  }

  function change(id: number, changes: Partial<PendingFile>): void {
    kept.value = kept.value.map((file) => (file.id === id ? { ...file, ...changes } : file))
  }

  function remove(id: number): void {
    release(kept.value.filter((file) => file.id === id))
    kept.value = kept.value.filter((file) => file.id !== id)
    store(key())
  }

  /** After the message was accepted; what was attached meanwhile stays. */
  function clear(): void {
    // Another message is shown by now.
    if (takenOf !== key()) return void keepFiles(takenOf, [])
    const isSent = (file: PendingFile): boolean => taken.has(file.id)
    release(kept.value.filter(isSent))
    kept.value = kept.value.filter((file) => !isSent(file))
    store(key())
  }

  /** The message was accepted before this page was loaded. */
  async function clearRestored(): Promise<void> {
    await loading
    taken = new Set(kept.value.map((file) => file.id))
    takenOf = key()
    clear()
  }

  function bodies(): Schema<'AttachmentBody'>[] {
    const usable = files.value.filter((file) => file.body && !file.error)
    taken = new Set(usable.map((file) => file.id))
    takenOf = key()
    return usable.flatMap((file) => file.body ?? [])
  }

  return { files, isUploading, isRefused, add, addText, addStored, remove, clear, clearRestored, bodies }
}

function release(files: readonly PendingFile[]): void {
  for (const file of files) if (file.preview?.startsWith('blob:')) URL.revokeObjectURL(file.preview)
}

function previewOf({ body, mediaType }: DraftFile): string | null {
  return body.data ? `data:${mediaType};base64,${body.data}` : null
}

async function base64(file: File): Promise<string> {
  const bytes = new Uint8Array(await file.arrayBuffer())
  let binary = ''
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000))
  return btoa(binary)
}

/** Uploads a file. Raises ApiError if it could not be sent with a message; then it is not in the workspace either. */
async function uploaded(file: File): Promise<Schema<'AttachmentBody'>> {
  const form = new FormData()
  form.append('file', file)
  const address = new URL('/files', window.location.origin)
  const response = await signedFetch(new Request(address, { method: 'POST', body: form }))
  if (!response.ok) throw await failureOf(response)
  const { id } = ((await response.json()) as Schema<'Success_UploadView'>).data
  const body = { file_id: id }
  try {
    await ask(api.POST('/messages/attachments/check', { body: { attachments: [body] } }))
  } catch (error) {
    await ask(api.DELETE('/files/{file_id}', { params: { path: { file_id: id } } })).catch(() => undefined)
    throw error
  }
  return body
}
