/**
 * What is shown only after a click or a key, such as the list of a menu: its code is loaded when the page has nothing
 * else to do, or at once when it is needed earlier.
 */
import { type Component, markRaw, onMounted, type ShallowRef, shallowRef } from 'vue'

export interface Later {
  /** Null until it was shown once. */
  panel: ShallowRef<Component | null>
  show: () => Promise<void>
}

const whenIdle = (work: () => void): void => {
  if ('requestIdleCallback' in window) window.requestIdleCallback(work)
  else setTimeout(work, 1_000)
}

export function useLater(load: () => Promise<{ default: Component }>): Later {
  const panel = shallowRef<Component | null>(null)
  onMounted(() => whenIdle(() => void load().catch(() => undefined)))
  return {
    panel,
    show: async () => {
      panel.value = markRaw((await load()).default)
    },
  }
}
