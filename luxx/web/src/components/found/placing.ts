/** Shows one message of a virtualised list: at its place, with the focus, and marked for some seconds. */
import { nextTick, type Ref, shallowRef } from 'vue'
import type { FollowEnd } from '@/components/followEnd'

/** Some of the message before stays in sight above it. */
const ABOVE_FOUND = 64
const PLACING_FRAMES = 60
const MIN_FRAMES = 3
/** So long after a call the virtualiser moves the list once more where a height changes. */
const SETTLING_MS = 160
const MARKED_MS = 5000

interface Placed {
  scroller: Readonly<Ref<HTMLElement | null>>
  virtualizer: Readonly<Ref<{ scrollToIndex: (index: number, options: { align: 'start'; offset: number }) => void } | null>>
  place: FollowEnd['place']
  /** Which row of the list has the message; its element has the id as `data-message`. */
  indexOf: (id: string) => number
}

export function usePlacing({ scroller, virtualizer, place, indexOf }: Placed) {
  const marked = shallowRef<string | null>(null)
  let marking = 0

  /** The heights around a message are not known before they are drawn: it has its place when it stays there. */
  async function show(id: string): Promise<void> {
    const rowOf = (): HTMLElement | null => scroller.value?.querySelector<HTMLElement>(`[data-message="${CSS.escape(id)}"]`) ?? null
    marked.value = id
    window.clearTimeout(marking)
    await place(async () => {
      await nextTick()
      let top = Number.NaN
      for (let frame = 0; frame < PLACING_FRAMES; frame++) {
        virtualizer.value?.scrollToIndex(indexOf(id), { align: 'start', offset: -ABOVE_FOUND })
        await new Promise(requestAnimationFrame)
        const now = rowOf()?.getBoundingClientRect().top ?? Number.NaN
        const view = scroller.value?.getBoundingClientRect()
        // A row that has the focus is there while it is out of sight.
        const isInSight = view !== undefined && now > view.top - 1 && now < view.bottom
        if (frame > MIN_FRAMES && isInSight && Math.abs(now - top) < 1) break
        top = now
      }
      await new Promise((resolve) => window.setTimeout(resolve, SETTLING_MS))
    })
    rowOf()?.focus({ preventScroll: true })
    marking = window.setTimeout(() => (marked.value = null), MARKED_MS)
  }

  return { marked, show }
}
