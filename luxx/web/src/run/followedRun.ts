/** The newest run of a conversation, room or task, as its page follows it: its state grows with its events. */
import { useEventListener } from '@vueuse/core'
import { onScopeDispose, readonly, ref, shallowReadonly, shallowRef, watch } from 'vue'
import { useReload } from '@/api/queries'
import { type SessionState, subscribe } from '@/api/socket'
import { followRun } from '@/api/stream'
import { useUiCommands } from '@/stores/uiCommands'
import { endsStream, type RunEvent } from './events'
import { reduce } from './reducer'
import { EMPTY } from './state'

/**
 * How long events wait for those after them. Not for each token, and not for each frame: rendering is what costs,
 * about 4 ms each time (`make bench`, row `ui`). The first events are shown at once.
 */
const FLUSH_MS = 70

export interface FollowOptions {
  /** The id of the conversation, room or task, whose states `onState` gets: now, and when they change. */
  subject?: () => string | undefined
  /** Null: the subject is not there any more, or may not be seen. */
  onState?: (state: SessionState | null) => void
  /** The page can be seen again. */
  onReturn?: () => void
  /** The stream has ended, because the run ended or paused, or because the server refused it with this error. */
  onEnd: (error: unknown) => void
}

/** Follows one run at a time. What was received of the last one stays, until another one or none is followed. */
export function useFollowedRun({ subject, onState, onReturn, onEnd }: FollowOptions) {
  const runId = ref<string | null>(null)
  const live = shallowRef(EMPTY)
  const isConnected = ref(true)
  const isFollowing = ref(false)
  const uiCommands = useUiCommands()
  const reloadQueries = useReload()
  let closing = new AbortController()
  onScopeDispose(() => closing.abort())

  /** Follows the run from its beginning, or from where it paused. */
  function follow(wanted: string | null): void {
    const isSame = runId.value === wanted
    if (isSame && (isFollowing.value || wanted === null)) return
    closing.abort()
    closing = new AbortController()
    if (!isSame) live.value = EMPTY
    runId.value = wanted
    isConnected.value = true
    isFollowing.value = wanted !== null
    if (wanted !== null) void read(wanted, closing.signal)
  }

  async function read(wanted: string, signal: AbortSignal): Promise<void> {
    let queue: { event: RunEvent; seq: number | null }[] = []
    let timer = 0
    let flushedAt = 0
    /** What was logged before the present connection is a replay. */
    let replayed = Number.POSITIVE_INFINITY

    function flush(): void {
      window.clearTimeout(timer)
      timer = 0
      flushedAt = performance.now()
      const events = queue
      queue = []
      if (signal.aborted) return
      reloadArtifacts(events.map(({ event }) => event))
      live.value = events.reduce((before, { event, seq }) => reduce(before, event, seq), live.value)
    }

    const follower = {
      onEvent(event: RunEvent, seq: number | null): void {
        if (event.type === 'run') replayed = event.run.last_seq
        if (event.type === 'ui_command' && seq !== null && seq > replayed && !signal.aborted) uiCommands.carryOut(event)
        queue.push({ event, seq })
        if (endsStream(event)) flush()
        else if (!timer) timer = window.setTimeout(flush, Math.max(0, FLUSH_MS - (performance.now() - flushedAt)))
      },
      onConnection(connected: boolean): void {
        if (!signal.aborted) isConnected.value = connected
      },
    }
    const error = await followRun(wanted, follower, signal, live.value.seq).catch((refusal: unknown) => refusal)
    flush()
    if (signal.aborted) return
    isFollowing.value = false
    onEnd(error)
  }

  /** Artifacts that the run made or changed are shown in their newest version. */
  function reloadArtifacts(events: RunEvent[]): void {
    const ids = new Set(events.flatMap((event) => (event.type === 'artifact_updated' ? [event.artifact_id] : [])))
    for (const id of ids) void reloadQueries(['artifact', id])
    if (ids.size > 0) void reloadQueries(['artifacts'])
  }

  watch(
    () => subject?.(),
    (id, _before, onCleanup) => {
      if (id !== undefined && onState) onCleanup(subscribe(id, onState))
    },
    { immediate: true },
  )
  useEventListener(document, 'visibilitychange', () => {
    if (document.visibilityState === 'visible') onReturn?.()
  })

  return { runId: readonly(runId), live: shallowReadonly(live), isConnected: readonly(isConnected), isFollowing: readonly(isFollowing), follow }
}

export type FollowedRun = ReturnType<typeof useFollowedRun>
