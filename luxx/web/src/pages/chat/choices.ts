/** What the next message is sent with: model and agent belong to the conversation, tools and thinking to the message. */
import { computed, ref, shallowRef, watch } from 'vue'
import type { Schema } from '@/api/types'
import { useModels } from '@/stores/models'
import type { AnswerOptions } from './conversation'
import { type Conversation, useConversationChanges } from './conversations'

export type ToolChoice = 'auto' | 'all' | 'none' | string[]

/** `conversation` is null before the first message. */
export function useChoices(conversation: () => Conversation | null) {
  const models = useModels()
  const changes = useConversationChanges()
  const begun = shallowRef<Schema<'ConversationBody'>>({})
  const tools = ref<ToolChoice>('auto')
  const thinking = ref<boolean | null>(null)

  const providerId = computed(() => conversation()?.provider_id ?? begun.value.provider_id ?? null)
  const provider = computed(
    () => models.enabled.find((each) => each.id === providerId.value) ?? models.defaultProvider,
  )
  const model = computed(() => conversation()?.model ?? begun.value.model ?? provider.value?.default_model ?? '')
  const agentId = computed(() => conversation()?.agent_id ?? begun.value.agent_id ?? null)
  const card = computed(() => {
    const offered = provider.value ? models.offered[provider.value.id] : undefined
    return offered?.cards.find((each) => each.name === model.value) ?? null
  })

  watch(
    () => conversation()?.thinking_enabled,
    (stored) => {
      thinking.value = stored ?? null
    },
  )

  /** Changes the conversation, or what it will begin with. Raises ApiError. */
  async function change(body: Schema<'ConversationChangeBody'>): Promise<Conversation | null> {
    const present = conversation()
    if (present) return changes.change(present.id, body)
    begun.value = { ...begun.value, ...body }
    return null
  }

  const options = computed<AnswerOptions>(() => ({
    ...(tools.value === 'auto' ? {} : { tools: tools.value === 'all' ? true : tools.value === 'none' ? false : tools.value }),
    ...(thinking.value === null ? {} : { thinking_enabled: thinking.value }),
  }))

  return { begun, provider, model, agentId, card, tools, thinking, options, change }
}

export type Choices = ReturnType<typeof useChoices>
