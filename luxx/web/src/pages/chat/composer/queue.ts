/** What waits in a conversation: the messages that a person wrote while an answer is made. */
import { computed, shallowRef, watch } from 'vue'
import { api, ask } from '@/api/client'
import type { SessionState } from '@/api/socket'
import type { Schema } from '@/api/types'
import type { FollowedRun } from '@/run/followedRun'

export type QueueItem = Schema<'QueueItem'>
export type WhenBusy = Schema<'WhenBusy'>

export function useQueue(conversationId: () => string | undefined, run: FollowedRun) {
  /** Null before it is known. */
  const queue = shallowRef<Schema<'Queue'> | null>(null)
  let asked = 0

  watch(conversationId, () => {
    asked += 1
    queue.value = null
  })

  /** The messages that are steps of an answer: also after the next answer has begun, until the queue is read anew. */
  const taken = shallowRef<ReadonlySet<string>>(new Set())
  watch(
    () => run.live.value.turns['']?.steps,
    (steps = []) => {
      const ids = steps.flatMap((step) => (step.type === 'user' && step.id_ref ? [step.id_ref] : []))
      if (ids.some((id) => !taken.value.has(id))) taken.value = new Set([...taken.value, ...ids])
    },
  )
  /** Without those that are steps of the answer already. */
  const items = computed(() => (queue.value?.items ?? []).filter((item) => !taken.value.has(item.queue_id)))

  async function load(): Promise<void> {
    const id = conversationId()
    if (id === undefined) return
    const number = ++asked
    const params = { path: { conversation_id: id } }
    const found = await ask(api.GET('/conversations/{conversation_id}/queue', { params })).catch(() => null)
    if (found && number === asked) queue.value = found
  }

  /** The socket says how many messages wait; which ones, only the queue does. */
  function onState(state: SessionState | null): void {
    if (state?.queued || queue.value?.items.length) void load()
  }

  const at = (id: string) => ({ params: { path: { conversation_id: conversationId() ?? '', queue_id: id } } })

  async function change(id: string, body: Schema<'QueueChangeBody'>): Promise<void> {
    try {
      const changed = await ask(api.PUT('/conversations/{conversation_id}/queue/{queue_id}', { ...at(id), body }))
      const replaced = queue.value?.items.map((item) => (item.queue_id === id ? changed : item))
      if (queue.value && replaced) queue.value = { ...queue.value, items: replaced }
    } finally {
      await load()
    }
  }

  async function remove(id: string): Promise<void> {
    await ask(api.DELETE('/conversations/{conversation_id}/queue/{queue_id}', at(id))).finally(load)
  }

  async function resume(): Promise<void> {
    const params = { path: { conversation_id: conversationId() ?? '' } }
    await ask(api.POST('/conversations/{conversation_id}/queue/resume', { params })).finally(load)
  }

  return { queue, items, load, onState, change, remove, resume }
}

export type ConversationQueue = ReturnType<typeof useQueue>
