/** Whether the server can be reached, for the banner and for whoever connects again. */
import { readonly, ref, watch } from 'vue'

const PROBE_MS = 2_000

const isOnline = ref(navigator.onLine)
let probing = 0

window.addEventListener('offline', () => connection.lost())
window.addEventListener('online', () => void probe())

export const connection = {
  isOnline: readonly(isOnline),
  reached(): void {
    isOnline.value = true
    window.clearInterval(probing)
    probing = 0
  },
  /** Asks the server from time to time until it answers. */
  lost(): void {
    isOnline.value = false
    if (!probing) probing = window.setInterval(() => void probe(), PROBE_MS)
  },
}

/** Resolves after `ms`, or as soon as the server can be reached again. */
export function untilReachable(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const stop = watch(isOnline, (online) => online && end())
    const timer = window.setTimeout(end, ms)
    signal.addEventListener('abort', end, { once: true })

    function end(): void {
      stop()
      window.clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
  })
}

async function probe(): Promise<void> {
  try {
    await fetch('/health', { cache: 'no-store', signal: AbortSignal.timeout(PROBE_MS) })
    connection.reached()
  } catch {
    connection.lost()
  }
}
