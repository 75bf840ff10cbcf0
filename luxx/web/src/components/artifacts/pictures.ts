/** The pictures of pages of files: one for each page of a version, shared by all that show it. */
import { onScopeDispose, ref, watch } from 'vue'
import { useQuery } from '@pinia/colada'
import { ApiError } from '@/api/client'
import { readFile } from '@/api/files'

/** The width of the pictures that the server makes when it saves a version; others it has to make first. */
export const PICTURE_PX = 1280
/** That of a picture on a whole large screen. */
export const LARGE_PX = 2560
/** Pictures that are loaded at once: the browser has six connections for everything. */
const AT_ONCE = 3

export interface PictureOf {
  id: string
  index: number
  version: number
  width: number
}

let loading = 0
const waiting: (() => void)[] = []
/** Whether the server draws pages; it says so when it is asked for the first picture. */
const hasRenderer = ref(true)

/** The last one that is asked for comes first: it is what one looks at. */
async function inTurn<T>(load: () => Promise<T>): Promise<T> {
  if (loading >= AT_ONCE) await new Promise<void>((resolve) => waiting.push(resolve))
  loading += 1
  try {
    return await load()
  } finally {
    loading -= 1
    waiting.pop()?.()
  }
}

async function readPicture({ id, index, version, width }: PictureOf): Promise<Blob> {
  try {
    return await inTurn(() => readFile(`/artifacts/${id}/pages/${index}?version=${version}&width=${width}`))
  } catch (error) {
    if (error instanceof ApiError && error.kind === 'renderer_missing') hasRenderer.value = false
    throw error
  }
}

/** The address of a picture, empty until it is there; that of the picture before stays until then. */
export function usePicture(picture: () => PictureOf, isWanted: () => boolean) {
  const query = useQuery({
    key: () => {
      const { id, index, version, width } = picture()
      return ['artifact-pictures', id, version, index, width]
    },
    enabled: () => isWanted() && hasRenderer.value,
    // A version never changes.
    staleTime: Number.POSITIVE_INFINITY,
    query: () => readPicture(picture()),
    placeholderData: (before) => before,
  })
  const address = ref('')
  const release = (): void => {
    if (address.value) URL.revokeObjectURL(address.value)
    address.value = ''
  }
  watch(
    () => query.data.value,
    (blob) => {
      release()
      if (blob) address.value = URL.createObjectURL(blob)
    },
    { immediate: true },
  )
  onScopeDispose(release)
  return { address, error: query.error, refetch: query.refetch }
}
