/** A list that stays at its end while it grows, unless a person has scrolled up, and loads what is earlier at its top. */
import { useResizeObserver } from '@vueuse/core'
import { nextTick, type Ref, ref, useTemplateRef } from 'vue'
import { useNotices } from '@/stores/notices'

const NEAR_END = 48
const LOAD_BEFORE = 1200

export interface FollowEnd {
  scroller: Readonly<Ref<HTMLElement | null>>
  isFollowing: Readonly<Ref<boolean>>
  /** Earlier entries are being put before those that are shown. */
  isPrepending: Readonly<Ref<boolean>>
  jump: () => void
  load: () => Promise<void>
  /** Listeners of the scroller. */
  listeners: Record<'scrollPassive' | 'wheelPassive' | 'touchstartPassive' | 'touchendPassive' | 'keydown', (event: Event) => void>
}

/** The template of the component has the elements `scroller` and, within it, `content`. */
export function useFollowEnd(hasEarlier: () => boolean, loadEarlier: () => Promise<unknown>): FollowEnd {
  const notices = useNotices()
  const scroller = useTemplateRef<HTMLElement>('scroller')
  const content = useTemplateRef<HTMLElement>('content')
  const isFollowing = ref(true)
  const isPrepending = ref(false)
  let lastTop = 0
  let lastHeight = 0
  let isTouched = false

  function toEnd(): void {
    const element = scroller.value
    if (!element) return
    element.scrollTop = element.scrollHeight
    lastTop = element.scrollTop
    lastHeight = element.scrollHeight
  }

  function jump(): void {
    isFollowing.value = true
    toEnd()
  }

  /** What shrinks moves the page up too, at most by as much; only a person who does stops it. */
  function onScroll(): void {
    const element = scroller.value
    if (!element) return
    const { scrollTop: top, scrollHeight: height } = element
    const isUp = top < lastTop - 1
    const isMovedByContent = !isTouched && top > 0 && lastTop - top <= lastHeight - height + 1
    lastTop = top
    lastHeight = height
    if (height - top - element.clientHeight < NEAR_END) isFollowing.value = true
    else if (isUp && !isMovedByContent) isFollowing.value = false
    else if (isUp && isFollowing.value && !isPrepending.value) toEnd()
    if (top < LOAD_BEFORE) void load()
  }

  /** A wheel or a key upwards stops at once, before text that grows moves the page again. */
  function onUserScroll(event: Event): void {
    const isUp = event instanceof WheelEvent ? event.deltaY < 0 : ['ArrowUp', 'PageUp', 'Home'].includes((event as KeyboardEvent).key)
    if (isUp && (scroller.value?.scrollTop ?? 0) > 0) isFollowing.value = false
  }

  async function load(): Promise<void> {
    if (!hasEarlier() || isPrepending.value) return
    isPrepending.value = true
    try {
      await loadEarlier()
      await nextTick()
    } catch (error) {
      notices.showError(error)
    } finally {
      isPrepending.value = false
    }
  }

  useResizeObserver([content, scroller], () => {
    if (isFollowing.value && !isPrepending.value) toEnd()
  })

  const listeners = {
    scrollPassive: onScroll,
    wheelPassive: onUserScroll,
    touchstartPassive: () => (isTouched = true),
    touchendPassive: () => (isTouched = false),
    keydown: onUserScroll,
  }
  return { scroller, isFollowing, isPrepending, jump, load, listeners }
}
