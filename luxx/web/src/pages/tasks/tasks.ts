/** Tasks: the queries of the list, and what is computed from a task and its run. */
import { api, ask } from '@/api/client'
import { sendDocument, saveFile } from '@/api/files'
import { firstPages } from '@/api/lists'
import { useReload } from '@/api/queries'
import type { Schema } from '@/api/types'
import type { RunState, TaskStepState } from '@/run/state'
import { draftOf, stepOf } from './drafts'

export type Task = Schema<'TaskView'>
export type TaskStepView = Schema<'TaskStepView'>
export type PlannedStep = Schema<'NewTaskStep'>
export type ShownTaskStatus = Schema<'TaskStatus'> | 'waiting' | 'paused'

export const LIST_KEY = ['tasks'] as const
export const PAGE_SIZE = 50
/** The key of the turn that writes the final result. */
export const RESULT_KEY = 'task:result'

export function pathOf(taskId: string): { path: { task_id: string } } {
  return { path: { task_id: taskId } }
}

export interface TaskListChoice {
  order: Schema<'TaskOrder'>
  snoozed: boolean
}

/** The tasks, or those whose name or goal contains the words. */
export function listTasks(choice: TaskListChoice, words: string, pages: number): Promise<{ items: Schema<'TaskSummary'>[]; hasMore: boolean }> {
  const query = { ...choice, ...(words ? { q: words } : {}), page_size: PAGE_SIZE }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/tasks', { params: { query: { ...query, page } } })))
}

/** A plan for the goal; nothing is stored. */
export function proposePlan(body: Schema<'NewPlan'>): Promise<Schema<'PlanView'>> {
  const answered = api.POST('/tasks/plan', { body }) as Promise<{ response: Response }>
  return ask(answered as Promise<{ data?: { data?: Schema<'PlanView'>; success: true }; response: Response }>)
}

/** What a task chose that is gone, itself or one of its steps: a copy would go on without it. */
export function hasLost(task: Task): boolean {
  return [task.lost_provider, task.lost_agent, task.lost_project, ...task.steps.map((step) => step.lost_agent)].some((lost) => lost !== null)
}

/** A new task with the same steps, of which none has begun, and without times. */
export function copyOf(task: Task, name: string): Schema<'NewTask'> {
  const { goal, provider_id, agent_id, project_id, max_concurrent_steps, require_approval, metadata, priority } = task
  const steps = task.steps.map((step) => stepOf(draftOf(step, step.id)))
  return {
    name: [...name].slice(0, 200).join(''),
    goal,
    provider_id,
    agent_id,
    project_id,
    max_concurrent_steps,
    require_approval,
    metadata,
    priority,
    steps,
  }
}

/** The task that this one runs again. */
export interface RepeatedTask {
  id: string
  name: string
  /** How often it was run with this one. */
  number: number
}

/** The key of `metadata` that names it. */
const REPEATS = 'runs_again'

export function repeatedBy(task: Task): RepeatedTask | null {
  const found = task.metadata[REPEATS] as Partial<RepeatedTask> | undefined
  return typeof found?.id === 'string' && typeof found.name === 'string'
    ? { id: found.id, name: found.name, number: Number(found.number) || 2 }
    : null
}

/** A copy that says what it runs again; that of a repetition names the first one. */
export function repetitionOf(task: Task, nameOf: (name: string, number: number) => string): Schema<'NewTask'> {
  const before = repeatedBy(task)
  const repeats = { id: task.id, name: before?.name ?? task.name, number: (before?.number ?? 1) + 1 }
  const copy = copyOf(task, nameOf(repeats.name, repeats.number))
  return { ...copy, metadata: { ...task.metadata, [REPEATS]: repeats as never } }
}

/** Whether a step holds nothing up: it is completed, or it failed and a person skipped it. */
export function isPassed(step: TaskStepView, states: Readonly<Record<string, TaskStepState>>): boolean {
  return states[step.id] === 'completed' || isPassedOver(step)
}

export function isPassedOver(step: TaskStepView): boolean {
  return step.status === 'skipped' && step.skipped_because === step.id
}

/** Creates a task from a task file: YAML or JSON text. */
export function importTask(document: string, mediaType: string): Promise<Task> {
  return sendDocument('/tasks/import', document, mediaType)
}

/** Saves the task's file on the reader's machine. */
export function downloadTask(task: Task, format: 'yaml' | 'json'): Promise<void> {
  return saveFile(`/tasks/${task.id}/export?format=${format}`, task.name, format)
}

/** The state of each step: as the run that is followed says, else as it is stored. */
export function stepStates(task: Task, live: RunState, isFollowing: boolean): Record<string, TaskStepState> {
  const states: Record<string, TaskStepState> = {}
  for (const step of task.steps) {
    // A step that failed is skipped after its run, whose log says nothing about it.
    const shown = isFollowing && !isPassedOver(step) ? live.taskSteps[step.id]?.state : undefined
    states[step.id] = shown || step.status
  }
  return states
}

/** Steps of a waiting task that can begin once a person approves them. */
export function openApprovals(task: Task, states: Readonly<Record<string, TaskStepState>>): Set<string> {
  const passed = new Set(task.steps.filter((step) => isPassed(step, states)).map((step) => step.id))
  const ready = task.steps.filter(
    (step) => step.require_approval && !step.approved_at && states[step.id] === 'pending' && step.depends_on.every((id) => passed.has(id)),
  )
  return new Set(ready.map((step) => step.id))
}

/** Whether a waiting task waits for the approval of its whole plan. */
export function isPlanApprovalOpen(task: Task, states: Readonly<Record<string, TaskStepState>>): boolean {
  return task.require_approval && Object.values(states).every((state) => state === 'pending')
}

/** The steps in an order in which each stands behind those that it needs; those of a cycle come last. */
export function inOrder<T extends { id?: string | null; depends_on?: string[] }>(steps: readonly T[]): T[] {
  const ordered: T[] = []
  const done = new Set<string>()
  let rest = [...steps]
  while (rest.length) {
    const ready = rest.filter((step) => (step.depends_on ?? []).every((id) => done.has(id)))
    if (ready.length === 0) return [...ordered, ...rest]
    for (const step of ready) done.add(step.id ?? '')
    ordered.push(...ready)
    rest = rest.filter((step) => !ready.includes(step))
  }
  return ordered
}

/** The ids of the steps that need this one, directly or through others. */
export function descendants(steps: readonly { id: string; depends_on: string[] }[], id: string): Set<string> {
  const found = new Set<string>()
  const waiting = [id]
  while (waiting.length) {
    const parent = waiting.pop() as string
    for (const step of steps) {
      if (step.depends_on.includes(parent) && !found.has(step.id)) {
        found.add(step.id)
        waiting.push(step.id)
      }
    }
  }
  return found
}

export function useTaskLists(): { reload: () => Promise<unknown> } {
  const reloadQueries = useReload()
  return { reload: () => reloadQueries(LIST_KEY) }
}
