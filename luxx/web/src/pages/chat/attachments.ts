/** Files for a message: images go with it, others are uploaded into the workspace first. */
import { ref } from 'vue'
import { asApiError, failureOf, signedFetch } from '@/api/client'
import type { Schema } from '@/api/types'

const MAX_IMAGE_BYTES = 4_000_000
const IMAGE = /^image\/(png|jpeg|gif|webp)$/

export interface PendingFile {
  id: number
  name: string
  size: number
  /** For the picture in the composer. */
  preview: string | null
  body: Schema<'AttachmentBody'> | null
  error: string
}

export function useAttachments() {
  const files = ref<PendingFile[]>([])
  let lastId = 0

  function add(added: Iterable<File>): void {
    for (const file of added) void addOne(file)
  }

  async function addOne(file: File): Promise<void> {
    const isImage = IMAGE.test(file.type) && file.size <= MAX_IMAGE_BYTES
    const preview = isImage ? URL.createObjectURL(file) : null
    const name = file.name || `${file.type.replace('/', '.')}`
    const pending: PendingFile = { id: ++lastId, name, size: file.size, preview, body: null, error: '' }
    files.value = [...files.value, pending]
    try {
      const body = isImage ? await imageBody(file, name) : { file_id: await upload(file) }
      change(pending.id, { body })
    } catch (error) {
      change(pending.id, { error: asApiError(error).message })
    }
  }

  function change(id: number, changes: Partial<PendingFile>): void {
    files.value = files.value.map((file) => (file.id === id ? { ...file, ...changes } : file))
  }

  function remove(id: number): void {
    const file = files.value.find((each) => each.id === id)
    if (file?.preview) URL.revokeObjectURL(file.preview)
    files.value = files.value.filter((each) => each.id !== id)
  }

  /** The finished files, which are no longer pending then. */
  function take(): Schema<'AttachmentBody'>[] {
    const bodies = files.value.flatMap((file) => (file.body ? [file.body] : []))
    for (const file of files.value) remove(file.id)
    return bodies
  }

  return { files, add, remove, take }
}

async function imageBody(file: File, name: string): Promise<Schema<'AttachmentBody'>> {
  const bytes = new Uint8Array(await file.arrayBuffer())
  let binary = ''
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000))
  return { name, media_type: file.type, data: btoa(binary) }
}

async function upload(file: File): Promise<string> {
  const body = new FormData()
  body.append('file', file)
  const address = new URL('/files', window.location.origin)
  const response = await signedFetch(new Request(address, { method: 'POST', body }))
  if (!response.ok) throw await failureOf(response)
  return ((await response.json()) as Schema<'Success_UploadView'>).data.id
}
