/** A list that stays at its end while it grows, unless a person has scrolled up, and loads what is earlier at its top,
 * and where its end is not loaded, what is later there. */
import { useResizeObserver } from '@vueuse/core'
import { nextTick, type Ref, ref, useTemplateRef } from 'vue'
import { useNotices } from '@/stores/notices'

const NEAR_END = 48
const LOAD_BEFORE = 1200
/** So long after a wheel, a key or a press of the scrollbar a move of the page is the person's. */
const PERSON_MS = 500

export interface FollowEnd {
  scroller: Readonly<Ref<HTMLElement | null>>
  isFollowing: Readonly<Ref<boolean>>
  /** Earlier entries are being put before those that are shown. */
  isPrepending: Readonly<Ref<boolean>>
  jump: () => void
  /** Runs what moves the list to another place than its end, which it leaves. */
  place: (move: () => Promise<void>) => Promise<void>
  load: () => Promise<void>
  /** Listeners of the scroller. */
  listeners: Record<
    'scrollPassive' | 'wheelPassive' | 'touchstartPassive' | 'touchendPassive' | 'keydown' | 'pointerdownPassive',
    (event: Event) => void
  >
}

export interface Later {
  has: () => boolean
  load: () => Promise<unknown>
}

/** The template of the component has the elements `scroller` and, within it, `content`. */
export function useFollowEnd(hasEarlier: () => boolean, loadEarlier: () => Promise<unknown>, later?: Later): FollowEnd {
  const notices = useNotices()
  const scroller = useTemplateRef<HTMLElement>('scroller')
  const content = useTemplateRef<HTMLElement>('content')
  const isFollowing = ref(true)
  const isPrepending = ref(false)
  let lastTop = 0
  let lastHeight = 0
  let lastInput = Number.NEGATIVE_INFINITY
  let isTouched = false
  let isPlacing = false

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

  async function place(move: () => Promise<void>): Promise<void> {
    isFollowing.value = false
    isPlacing = true
    try {
      await move()
    } finally {
      isPlacing = false
    }
    onScroll()
  }

  function noteInput(): void {
    lastInput = performance.now()
  }

  /** What changes its height moves the page up too, even to its top where it is short for a moment; only a person who
   * moves it stops the following. A search of the browser moves it without any input, but changes no height. */
  function onScroll(): void {
    const element = scroller.value
    if (!element) return
    const { scrollTop: top, scrollHeight: height } = element
    const isUp = top < lastTop - 1
    const isByPerson = isTouched || performance.now() - lastInput < PERSON_MS || height === lastHeight
    lastTop = top
    lastHeight = height
    if (isPlacing) return
    const below = height - top - element.clientHeight
    if (later?.has()) {
      isFollowing.value = false
      if (below < LOAD_BEFORE) later.load().catch(notices.showError)
    } else if (below < NEAR_END) isFollowing.value = true
    else if (isUp && isByPerson) {
      isFollowing.value = false
      noteInput() // A scrollbar that is held reports no more than this.
    } else if (isUp && isFollowing.value && !isPrepending.value) toEnd()
    if (top < LOAD_BEFORE) void load()
  }

  /** A wheel or a key upwards stops at once, before text that grows moves the page again. */
  function onUserScroll(event: Event): void {
    noteInput()
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
    pointerdownPassive: noteInput,
  }
  return { scroller, isFollowing, isPrepending, jump, place, load, listeners }
}
