/** The to-do list of a conversation: read anew when the model or another page has changed it, and changed here. */
import { shallowRef, watch } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import type { FollowedRun } from '@/run/followedRun'

export type TodoItem = Schema<'TodoItem'>
type Change = (items: readonly TodoItem[]) => Schema<'TodoBody'>[]

/** `leaf` is the newest message of the shown branch: another branch has another list. */
export function useTodos(conversationId: () => string | undefined, run: FollowedRun, leaf: () => string) {
  const items = shallowRef<readonly TodoItem[]>([])
  /** Shown also while it is empty. */
  const isOpened = shallowRef(false)
  let asked = 0
  let writing: Promise<unknown> = Promise.resolve()

  watch(conversationId, () => {
    asked += 1
    items.value = []
    isOpened.value = false
  })
  // The event has the list without what was changed here and is not logged yet; the server has both.
  watch([conversationId, leaf, () => run.live.value.todos, () => run.live.value.done], () => void load(), { immediate: true })

  async function load(): Promise<void> {
    const id = conversationId()
    if (id === undefined) return
    const number = ++asked
    const params = { path: { conversation_id: id } }
    const found = await ask(api.GET('/conversations/{conversation_id}/todos', { params })).catch(() => null)
    if (found && number === asked) items.value = found.todos
  }

  /** The socket speaks also when another page has changed the list. */
  function onState(): void {
    if (items.value.length > 0 || isOpened.value || !run.runId.value) void load()
  }

  /** One change after the other, each of the list that the one before has left. */
  function change(make: Change): Promise<void> {
    const id = conversationId() ?? ''
    const made = writing.then(async () => {
      if (id !== conversationId()) return
      const base = items.value
      const number = ++asked
      try {
        const params = { path: { conversation_id: id } }
        const body = { todos: make(base), base: [...base] }
        const saved = await ask(api.PUT('/conversations/{conversation_id}/todos', { params, body }))
        if (number === asked) items.value = saved.todos
        else await load()
      } catch (error) {
        await load()
        throw error
      }
    })
    writing = made.catch(() => undefined)
    return made
  }

  const add = (title: string) => change((all) => [...all, { title }])
  const remove = (id: string) => change((all) => all.filter((each) => each.id !== id))
  const tick = (id: string, completed: boolean) => change((all) => all.map((each) => (each.id === id ? { ...each, completed } : each)))
  /** One that was removed meanwhile is added again, with what was typed. */
  const rename = (id: string, title: string) =>
    change((all) => (all.some((each) => each.id === id) ? all.map((each) => (each.id === id ? { ...each, title } : each)) : [...all, { title }]))

  return { items, isOpened, onState, add, remove, tick, rename }
}

export type ConversationTodos = ReturnType<typeof useTodos>
