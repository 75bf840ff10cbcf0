/** One room as its page shows it: settings and seats, stored messages, and its newest run, followed live. */
import { useQuery } from '@pinia/colada'
import { computed, type ComputedRef, type Ref, ref, shallowRef, watch } from 'vue'
import { api, ask } from '@/api/client'
import { useReload } from '@/api/queries'
import type { SessionState } from '@/api/socket'
import type { Schema } from '@/api/types'
import { useFollowedRun } from '@/run/followedRun'
import type { RunState } from '@/run/state'
import { LIST_KEY, pathOf, type Room } from './rooms'
import { type Entry, type StoredMessage, transcriptOf } from './transcript'

const STORED_PAGE = 50
/** As many as the server gives at once, to find an earlier message. */
const BACK_PAGE = 100

export type ShownStatus = Schema<'RoomStatus'> | 'waiting'

export interface LiveRoom {
  id: string
  room: ComputedRef<Room | null>
  error: ComputedRef<unknown>
  live: Readonly<Ref<RunState>>
  status: ComputedRef<ShownStatus>
  entries: ComputedRef<Entry[]>
  hasEarlier: Readonly<Ref<boolean>>
  isConnected: Readonly<Ref<boolean>>
  isLoaded: Readonly<Ref<boolean>>
  refresh(): Promise<void>
  loadEarlier(): Promise<void>
  add(message: StoredMessage): void
  /** Loads back to a message. Returns whether the room has it. */
  find(messageId: string): Promise<boolean>
  /** The id of the newest stored message; null before they are loaded. */
  newest(): string | null
}

export function useRoom(id: string): LiveRoom {
  const reloadQueries = useReload()
  const query = useQuery({
    key: () => ['room', id],
    query: () => ask(api.GET('/chat-rooms/{room_id}', { params: pathOf(id) })),
  })
  const room = computed(() => query.data.value ?? null)
  const stored = useStored(id)
  let members = ''
  const run = useFollowedRun({ subject: () => id, onState, onReturn: () => void refresh(), onEnd: () => void refresh() })

  async function refresh(): Promise<void> {
    await Promise.all([query.refetch(), reloadQueries(LIST_KEY), loadStored()])
    if (room.value?.status === 'running') run.follow(room.value.run_id)
  }

  watch(
    () => room.value?.run_id,
    (runId, before) => {
      if (runId === null && before)
        void restart() // Somebody reset the room.
      else run.follow(runId ?? null)
    },
    { immediate: true },
  )

  async function restart(): Promise<void> {
    run.follow(null)
    stored.clear()
    await loadStored()
  }

  /** Without a connection this fails; then the next state of the socket loads what is missing. */
  const loadStored = (): Promise<void> => stored.load().catch(() => undefined)
  void loadStored()

  function onState(state: SessionState | null): void {
    // Null: the room was deleted, or one is no member any more; reading it says which.
    const isNews = state === null || state.run_id !== room.value?.run_id || (!run.isFollowing.value && state.status !== status.value)
    const found = state ? `${state.members} ${state.right}` : members
    const areOthers = members !== '' && members !== found
    members = found
    if (isNews || areOthers) void refresh()
    else if (!run.isFollowing.value && state.message_id && !stored.has(state.message_id)) void loadStored()
    if (areOthers) void reloadQueries(['room-members', id])
  }

  const status = computed<ShownStatus>(() => shownStatus(room.value, run.live.value))
  const entries = computed(() => transcriptOf(stored.messages.value, run.live.value))

  return {
    id,
    room,
    error: computed(() => query.error.value),
    live: run.live,
    status,
    entries,
    hasEarlier: stored.hasEarlier,
    isConnected: run.isConnected,
    isLoaded: stored.isLoaded,
    refresh,
    loadEarlier: stored.loadEarlier,
    add: stored.add,
    find: async (messageId) => entries.value.some((entry) => entry.id === messageId) || stored.loadBackTo(messageId),
    newest: () => (stored.isLoaded.value ? (stored.messages.value.at(-1)?.id ?? '') : null),
  }
}

/** The run knows more than the room was read with, as long as it is the same run. */
function shownStatus(room: Room | null, live: RunState): ShownStatus {
  if (!room) return 'idle'
  if (!live.run || live.run.id !== room.run_id) return room.status
  const { status } = live
  if (status === 'waiting') return 'waiting'
  if (status === 'running' || status === 'queued') return 'running'
  if (status === 'paused') return room.status === 'error' ? 'error' : 'paused'
  return room.status === 'running' ? 'completed' : room.status
}

/** The messages of the room that are stored, from the newest back as far as they were loaded. */
function useStored(id: string) {
  const messages = shallowRef<readonly StoredMessage[]>([])
  const hasEarlier = ref(false)
  const isLoaded = ref(false)

  async function read(before?: string, limit = STORED_PAGE): Promise<void> {
    const query = before ? { before, limit } : { limit }
    const page = await ask(api.GET('/chat-rooms/{room_id}/messages', { params: { ...pathOf(id), query } }))
    const known = new Map([...page.items, ...messages.value].map((message) => [message.id, message]))
    const isFirst = messages.value.length === 0
    if (known.size > messages.value.length) {
      messages.value = [...known.values()].toSorted((a, b) => (a.id < b.id ? -1 : 1))
    }
    if (before || isFirst) hasEarlier.value = page.has_more ?? false
    isLoaded.value = true
  }

  return {
    messages,
    hasEarlier,
    isLoaded,
    load: () =>
      read().catch(() => {
        isLoaded.value = true // The query of the room says why.
      }),
    loadEarlier: () => read(messages.value[0]?.id),
    async loadBackTo(messageId: string): Promise<boolean> {
      const isThere = (): boolean => messages.value.some((each) => each.id === messageId)
      if (!isThere()) await read()
      // Ids are in the order of time.
      for (let oldest = messages.value[0]?.id; oldest && messageId < oldest && hasEarlier.value; oldest = messages.value[0]?.id) {
        await read(oldest, BACK_PAGE)
        if (messages.value[0]?.id === oldest) break
      }
      return isThere()
    },
    has: (messageId: string) => !isLoaded.value || messages.value.some((each) => each.id === messageId),
    add(message: StoredMessage): void {
      if (messages.value.some((each) => each.id === message.id)) return
      messages.value = [...messages.value, message]
    },
    clear(): void {
      messages.value = []
      hasEarlier.value = false
    },
  }
}
