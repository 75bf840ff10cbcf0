/** What a link shows: a task at once, messages page by page. */
import { computed, shallowRef } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import { isSignedIn } from '@/api/tokens'

export type Shared = Schema<'SharedView'>
export type SharedMessage = Schema<'SharedMessage'>

const LIMIT = 100

export function useShared(token: string) {
  const shared = shallowRef<Shared | null>(null)
  const messages = shallowRef<SharedMessage[]>([])
  const error = shallowRef<unknown>(null)
  let loading: Promise<void> | null = null
  const hasMore = computed(() => shared.value !== null && (messages.value.at(-1)?.number ?? 0) < shared.value.total)

  /** People of the tenant are asked as themselves: the link may be for them only. */
  async function read(after: number): Promise<Shared> {
    const params = { path: { token }, query: { after, limit: LIMIT } }
    if (!isSignedIn()) return ask(api.GET('/shared/{token}', { params }))
    try {
      return await ask(api.GET('/tenant/shared/{token}', { params }))
    } catch (failure) {
      // The sign-in ended at this moment.
      if (isSignedIn()) throw failure
      return ask(api.GET('/shared/{token}', { params }))
    }
  }

  async function loadNext(): Promise<void> {
    try {
      const found = await read(messages.value.at(-1)?.number ?? 0)
      shared.value = found
      messages.value = [...messages.value, ...found.messages]
      error.value = null
    } catch (failure) {
      error.value = failure
    }
  }

  /** The next messages; one request at a time. */
  function loadMore(): Promise<void> {
    loading ??= loadNext().finally(() => (loading = null))
    return loading
  }

  async function loadAll(): Promise<void> {
    while (hasMore.value && error.value === null) await loadMore()
  }

  const imagePath = (message: SharedMessage, index: number): string =>
    `${isSignedIn() ? '/tenant/shared' : '/shared'}/${encodeURIComponent(token)}/images/${message.number}/${index}`

  return { shared, messages, error, hasMore, loadMore, loadAll, imagePath }
}
