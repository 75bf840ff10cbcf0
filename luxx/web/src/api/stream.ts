/** The events of a run: reads its stream, and connects again where it broke until the run has ended. */
import { createParser } from 'eventsource-parser'
import type { RunEvent } from '@/run/events'
import { endsStream } from '@/run/events'
import { isActive } from '@/components/states'
import { ApiError, failureOf, signedFetch } from './client'
import { connection, untilReachable } from './connection'

/** The server sends a comment every 15 seconds; a stream that is silent for longer is broken. */
const SILENCE_MS = 40_000
const WATCH_MS = 5_000
const FIRST_WAIT_MS = 300
const LONGEST_WAIT_MS = 8_000

export interface Follower {
  /** A frame; `seq` is null for those that are not in the log. */
  onEvent(event: RunEvent, seq: number | null): void
  /** The stream is broken (false) or works again (true). */
  onConnection?(isConnected: boolean): void
}

/** Follows a run from after the event `lastSeq` to its end. Raises ApiError where the server refuses. */
export async function followRun(runId: string, follower: Follower, signal: AbortSignal, lastSeq = 0): Promise<void> {
  const position = { seq: lastSeq }
  let wait = FIRST_WAIT_MS
  while (!signal.aborted) {
    const before = position.seq
    try {
      if (await readOnce(runId, follower, signal, position)) return
    } catch (error) {
      if (signal.aborted) return
      if (error instanceof ApiError && !isTemporary(error)) throw error
      if (!(error instanceof ApiError)) connection.lost()
    }
    if (signal.aborted) return
    follower.onConnection?.(false)
    wait = position.seq > before ? FIRST_WAIT_MS : Math.min(wait * 2, LONGEST_WAIT_MS)
    await untilReachable(wait, signal)
  }
}

function isTemporary(error: ApiError): boolean {
  return error.status === 0 || error.status === 429 || error.status >= 500
}

/** Reads one connection. Returns whether the run has ended. */
async function readOnce(runId: string, follower: Follower, signal: AbortSignal, position: { seq: number }): Promise<boolean> {
  const closing = new AbortController()
  const close = (): void => closing.abort()
  signal.addEventListener('abort', close, { once: true })
  window.addEventListener('offline', close)
  let heardAt = performance.now()
  const watchdog = window.setInterval(() => performance.now() - heardAt > SILENCE_MS && close(), WATCH_MS)
  // A pause in the middle of the log ends nothing: the run went on after it.
  let known = 0
  let isOver = false
  let isEnded = false
  const parser = createParser({
    onEvent(frame) {
      if (isEnded) return
      const event = JSON.parse(frame.data) as RunEvent
      const seq = frame.id ? Number(frame.id) : null
      if (seq !== null) position.seq = Math.max(position.seq, seq)
      if (event.type === 'run') {
        known = event.run.last_seq
        isOver = !isActive(event.run.status) && known <= position.seq
      }
      follower.onEvent(event, seq)
      if (endsStream(event) && position.seq >= known) isEnded = true
    },
  })
  try {
    const headers: Record<string, string> = { accept: 'text/event-stream' }
    if (position.seq > 0) headers['last-event-id'] = String(position.seq)
    const address = new URL(`/runs/${runId}/events`, window.location.origin)
    const response = await signedFetch(new Request(address, { headers, signal: closing.signal }))
    if (!response.ok || response.body === null) throw await failureOf(response)
    follower.onConnection?.(true)
    const reader = response.body.getReader()
    const decoder = new TextDecoder()
    while (!isEnded) {
      const { done, value } = await reader.read()
      if (done) return isOver
      heardAt = performance.now()
      parser.feed(decoder.decode(value, { stream: true }))
    }
    return true
  } finally {
    window.clearInterval(watchdog)
    signal.removeEventListener('abort', close)
    window.removeEventListener('offline', close)
    closing.abort()
  }
}
