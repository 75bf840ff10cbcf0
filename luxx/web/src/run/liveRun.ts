/** A run that is followed: its state grows with its events, which are applied about 14 times a second. */
import { onScopeDispose, shallowRef, type ShallowRef } from 'vue'
import { followRun } from '@/api/stream'
import type { RunEvent } from './events'
import { endsStream } from './events'
import { reduce } from './reducer'
import { EMPTY, type RunState } from './state'

/**
 * Not for each token, and not for each frame: rendering is what costs, about 4 ms each time (`make bench`, row `ui`).
 * The first events are shown at once.
 */
const FLUSH_MS = 70

export interface LiveRun {
  runId: string
  state: ShallowRef<RunState>
  isConnected: ShallowRef<boolean>
  /** Resolves when the run has ended or paused; rejects where the server refuses the stream. */
  ended: Promise<void>
  stop(): void
}

/** `from`: what is known of a run that paused, which is followed from there. */
export function useLiveRuns(): { follow(runId: string, from?: RunState): LiveRun; stopAll(): void } {
  const running = new Set<LiveRun>()
  const stopAll = (): void => running.forEach((run) => run.stop())
  onScopeDispose(stopAll)
  return {
    follow(runId, from = EMPTY) {
      const run = followLive(runId, from)
      running.add(run)
      void run.ended.catch(() => undefined).finally(() => running.delete(run))
      return run
    },
    stopAll,
  }
}

function followLive(runId: string, from: RunState): LiveRun {
  const state = shallowRef(from)
  const isConnected = shallowRef(true)
  const closing = new AbortController()
  let queue: { event: RunEvent; seq: number | null }[] = []
  let timer = 0
  let flushedAt = 0

  function flush(): void {
    window.clearTimeout(timer)
    timer = 0
    flushedAt = performance.now()
    const events = queue
    queue = []
    state.value = events.reduce((before, { event, seq }) => reduce(before, event, seq), state.value)
  }

  const follower = {
    onEvent(event: RunEvent, seq: number | null): void {
      queue.push({ event, seq })
      if (endsStream(event)) flush()
      else if (!timer) timer = window.setTimeout(flush, Math.max(0, FLUSH_MS - (performance.now() - flushedAt)))
    },
    onConnection(connected: boolean): void {
      isConnected.value = connected
    },
  }
  const ended = followRun(runId, follower, closing.signal, from.seq).finally(flush)
  return { runId, state, isConnected, ended, stop: () => closing.abort() }
}
