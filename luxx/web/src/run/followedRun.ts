/** The newest run of a room or task, as its page follows it. */
import { computed, ref, shallowRef } from 'vue'
import { type LiveRun, useLiveRuns } from './liveRun'
import { EMPTY } from './state'

/** Follows one run at a time; `onEnd` is called when its stream has ended. */
export function useFollowedRun(onEnd: () => void) {
  const runs = useLiveRuns()
  const current = shallowRef<LiveRun | null>(null)
  const isFollowing = ref(false)

  /** Follows the run from its beginning, or from where it paused. */
  function follow(wanted: string | null): void {
    const present = current.value
    const isSame = (present?.runId ?? null) === wanted
    if (isSame && (isFollowing.value || wanted === null)) return
    present?.stop()
    if (wanted === null) {
      current.value = null
      isFollowing.value = false
      return
    }
    const run = runs.follow(wanted, isSame ? present?.state.value : undefined)
    current.value = run
    isFollowing.value = true
    // The log of an old run may be deleted: its messages are stored all the same.
    void run.ended
      .catch(() => undefined)
      .finally(() => {
        if (current.value !== run) return
        isFollowing.value = false
        onEnd()
      })
  }

  return {
    live: computed(() => current.value?.state.value ?? EMPTY),
    isConnected: computed(() => current.value?.isConnected.value ?? true),
    isFollowing,
    follow,
  }
}
