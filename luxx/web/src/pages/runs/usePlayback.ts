/** Moves through the events of a history as they happened, at a multiple of their speed. */
import { onScopeDispose, ref, type Ref, watch } from 'vue'
import type { RunHistory } from '@/run/history'

export const SPEEDS = [1, 4, 16] as const
/** Above the real speed, a run that waits is not waited for. */
const LONGEST_PAUSE_MS = 2_000

export function usePlayback(history: Readonly<Ref<RunHistory | null>>, position: Ref<number>) {
  const isPlaying = ref(false)
  const speed = ref<number>(SPEEDS[0])
  let timer = 0
  /** The position that the playback set. */
  let shown = 0

  function pause(): void {
    window.clearTimeout(timer)
    isPlaying.value = false
  }

  /** The model of a component has its new value only after its parent was drawn, so the position is passed on. */
  function next(at: number): void {
    const present = history.value
    if (!present || at >= present.events.length) {
      pause()
      return
    }
    const gap = present.offsetAt(at + 1) - present.offsetAt(at)
    timer = window.setTimeout(
      () => {
        shown = at + 1
        position.value = shown
        next(shown)
      },
      speed.value === 1 ? gap : Math.min(gap, LONGEST_PAUSE_MS) / speed.value,
    )
  }

  function play(): void {
    const at = position.value >= (history.value?.events.length ?? 0) ? 0 : position.value
    shown = at
    position.value = at
    isPlaying.value = true
    next(at)
  }

  // Whoever chooses another position ends the playback.
  watch(position, (at) => at !== shown && pause())
  onScopeDispose(pause)
  return { isPlaying, speed, play, pause }
}
