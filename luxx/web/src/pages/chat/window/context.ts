/** How much of its model's context window a conversation takes: read anew when that may have changed. */
import { watchDebounced } from '@vueuse/core'
import { shallowRef } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import { useModels } from '@/stores/models'
import type { ConversationModel } from '../conversation'

export function useContext(model: ConversationModel) {
  /** Null while it is not known, also where no model can be used. */
  const context = shallowRef<Schema<'ConversationContext'> | null>(null)
  let asked = 0

  const models = useModels()
  /** Then the server could only refuse to say it. */
  const isWithoutModel = (): boolean => {
    const { lost_provider, lost_agent, lost_project } = model.conversation.value ?? {}
    return (models.enabled.length === 0 && !models.demo) || Boolean(lost_provider ?? lost_agent ?? lost_project)
  }

  async function load(): Promise<void> {
    const id = model.conversation.value?.id
    const number = ++asked
    if (id === undefined || isWithoutModel()) {
      context.value = null
      return
    }
    const params = { path: { conversation_id: id } }
    const found = await ask(api.GET('/conversations/{conversation_id}/context', { params })).catch(() => null)
    if (number === asked) context.value = found
  }

  // The usage grows with each model call of an answer; the tree changes with the selected branch.
  const { conversation, tree, run } = model
  watchDebounced([() => models.enabled.length, conversation, tree, run.runId, () => run.live.value.usage], load, {
    debounce: 150,
    maxWait: 1000,
    immediate: true,
  })
  return context
}
