/** What one does with a task: each request says where it failed, and the task is read again. */
import { useRouter } from 'vue-router'
import { api, ask, askForRun } from '@/api/client'
import { readFile } from '@/api/files'
import type { Schema } from '@/api/types'
import { useBusy } from '@/components/busy'
import { copyText } from '@/components/clipboard'
import { useProblem } from '@/components/problem/useProblem'
import { useTasksText } from '@/i18n/en/tasks'
import { useNotices } from '@/stores/notices'
import { copyOf, pathOf, repetitionOf, type Task, useTaskLists } from './tasks'
import type { LiveTask } from './useTask'

export function useTaskActions(task: LiveTask) {
  const text = useTasksText()
  const notices = useNotices()
  const router = useRouter()
  const { reload } = useTaskLists()
  const params = pathOf(task.id)
  const problem = useProblem()
  const { busy, run } = useBusy(task.refresh, problem)

  const stepParams = (stepId: string) => ({ path: { ...params.path, step_id: stepId } })
  return {
    busy,
    problem,
    execute: () => run('execute', () => askForRun(api.POST('/tasks/{task_id}/execute', { params }))),
    resume: () => run('resume', () => askForRun(api.POST('/tasks/{task_id}/resume', { params }))),
    pause: () => run('pause', () => ask(api.POST('/tasks/{task_id}/pause', { params }))),
    cancel: () => run('cancel', () => ask(api.POST('/tasks/{task_id}/cancel', { params }))),
    approve: (stepIds: string[] | null) =>
      run('approve', () => ask(api.POST('/tasks/{task_id}/approve', { params, ...(stepIds ? { body: { step_ids: stepIds } } : {}) }))),
    skip: (stepId: string) => run('skip', () => ask(api.POST('/tasks/{task_id}/steps/{step_id}/skip', { params: stepParams(stepId) }))),
    retry: (stepId: string) => run('retry', () => askForRun(api.POST('/tasks/{task_id}/steps/{step_id}/retry', { params: stepParams(stepId) }))),
    change: (body: Schema<'TaskChanges'>) => run('change', () => ask(api.PUT('/tasks/{task_id}', { params, body }))),
    changeStep: (stepId: string, body: Schema<'TaskStepChanges'>) =>
      run('step', () => ask(api.PUT('/tasks/{task_id}/steps/{step_id}', { params: stepParams(stepId), body }))),
    addStep: (step: Schema<'NewTaskStep'>) => run('step', () => ask(api.POST('/tasks/{task_id}/steps', { params, body: { steps: [step] } }))),
    removeStep: (stepId: string) => run('step', () => ask(api.DELETE('/tasks/{task_id}/steps/{step_id}', { params: stepParams(stepId) }))),
    copyMermaid: () =>
      run('mermaid', async () => {
        await copyText(await (await readFile(`/tasks/${task.id}/graph?format=mermaid`)).text())
        notices.show({ kind: 'info', text: text.mermaidCopied })
      }),
    duplicate: (of: Task) =>
      run('duplicate', async () => {
        const made = await ask(api.POST('/tasks', { body: copyOf(of, text.copyName(of.name)) }))
        await reload()
        await router.push(`/tasks/${made.id}`)
      }),
    /** A task whose run is refused is not left behind: the sentence stands here. */
    repeat: (of: Task) =>
      run('repeat', async () => {
        const made = await ask(api.POST('/tasks', { body: repetitionOf(of, text.repeatName) }))
        try {
          await askForRun(api.POST('/tasks/{task_id}/execute', { params: pathOf(made.id) }))
        } catch (error) {
          await ask(api.DELETE('/tasks/{task_id}', { params: pathOf(made.id) })).catch(() => undefined)
          throw error
        }
        await reload()
        await router.push(`/tasks/${made.id}`)
      }),
    remove: async () => {
      await ask(api.DELETE('/tasks/{task_id}', { params }))
      await reload()
      await router.push('/tasks')
    },
  }
}

export type TaskActions = ReturnType<typeof useTaskActions>
