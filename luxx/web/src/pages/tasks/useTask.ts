/** One task as its page shows it: its stored steps, and its newest run, followed live. */
import { useQuery } from '@pinia/colada'
import { computed, watch } from 'vue'
import { api, ask } from '@/api/client'
import { useReload } from '@/api/queries'
import type { SessionState } from '@/api/socket'
import { useFollowedRun } from '@/run/followedRun'
import { isActive } from '@/components/states'
import { openQuestions } from '@/run/state'
import { LIST_KEY, pathOf, type ShownTaskStatus, stepStates } from './tasks'

export function useTask(id: string) {
  const reloadQueries = useReload()
  const query = useQuery({
    key: () => ['task', id],
    query: () => ask(api.GET('/tasks/{task_id}', { params: pathOf(id) })),
  })
  const task = computed(() => query.data.value ?? null)
  const run = useFollowedRun({ subject: () => id, onState, onReturn: () => void refresh(), onEnd: () => void refresh() })

  async function refresh(): Promise<void> {
    await Promise.all([query.refetch(), reloadQueries(LIST_KEY)])
    const { status, run_id: runId } = task.value ?? {}
    if (status === 'running' || status === 'block') run.follow(runId ?? null)
  }

  watch(
    () => task.value?.run_id,
    (runId) => run.follow(runId ?? null),
    { immediate: true },
  )
  // Steps that a plan adds in the middle of a run, and what ended steps produced, are read from the task.
  watch(
    () =>
      Object.values(run.live.value.taskSteps)
        .map((step) => `${step.id} ${step.state} ${step.attempt}`)
        .join(),
    () => void query.refetch(),
  )
  watch(
    () => run.live.value.plan,
    () => void query.refetch(),
  )

  function onState(state: SessionState | null): void {
    // No event of the run says that it waits for an approval, or for another one.
    const isOld = state?.status === 'waiting' || status.value === 'waiting'
    if (!state || isOld || state.run_id !== task.value?.run_id || !run.isFollowing.value) void refresh()
  }

  const live = run.live
  const isRunning = computed(() => run.isFollowing.value && isActive(live.value.status))
  const status = computed<ShownTaskStatus>(() => {
    if (run.isFollowing.value && live.value.status === 'waiting') return 'waiting'
    const stored = task.value?.status ?? 'pending'
    if (isRunning.value && stored !== 'block') return 'running'
    if (stored === 'block') return live.value.status === 'paused' ? 'paused' : 'waiting'
    return stored
  })
  return {
    id,
    task,
    live,
    status,
    isRunning,
    isConnected: run.isConnected,
    error: computed(() => query.error.value),
    states: computed(() => (task.value ? stepStates(task.value, live.value, run.isFollowing.value) : {})),
    questions: computed(() => openQuestions(live.value)),
    refresh,
  }
}

export type LiveTask = ReturnType<typeof useTask>
