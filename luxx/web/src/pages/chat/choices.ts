/** What the next message is sent with: model and agent belong to the conversation, tools and thinking to the message. */
import { useQuery } from '@pinia/colada'
import { computed } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import { useDraft } from '@/components/forms/useDraft'
import { useModels } from '@/stores/models'
import type { AnswerOptions } from './conversation'
import { type Conversation, useConversationChanges } from './conversations'

export type ToolChoice = 'auto' | 'all' | 'none' | string[]

/** A model that answers the next message too. */
export type Compared = Schema<'ComparedModelBody'>

interface MessageChoices {
  tools: ToolChoice
  thinking: boolean | null
  compared?: Compared | null
}

/** `conversation` is null before the first message and while it is loaded, `id` only before the first message. */
export function useChoices(id: () => string | undefined, conversation: () => Conversation | null, onChange: (changed: Conversation) => void) {
  const models = useModels()
  const changes = useConversationChanges()
  /** What a conversation begins with that is not there yet. */
  const { value: begun } = useDraft<Schema<'ConversationBody'>>(
    () => 'chat-begun:new',
    () => ({}),
  )
  const { value: ofMessage } = useDraft<MessageChoices>(
    () => `chat-choices:${id() ?? 'new'}`,
    () => ({ tools: 'auto', thinking: conversation()?.thinking_enabled ?? null }),
  )
  const tools = computed({
    get: () => ofMessage.value.tools,
    set: (chosen: ToolChoice) => (ofMessage.value = { ...ofMessage.value, tools: chosen }),
  })
  const thinking = computed({
    get: () => ofMessage.value.thinking,
    set: (chosen: boolean | null) => (ofMessage.value = { ...ofMessage.value, thinking: chosen }),
  })

  const compared = computed({
    get: () => ofMessage.value.compared ?? null,
    set: (chosen: Compared | null) => (ofMessage.value = { ...ofMessage.value, compared: chosen }),
  })

  const own = computed<Schema<'ConversationBody'>>(() => (id() === undefined ? begun.value : {}))
  const agentId = computed(() => conversation()?.agent_id ?? own.value.agent_id ?? null)
  const agents = useQuery({
    key: ['agents', 'all'],
    query: () => ask(api.GET('/agents', { params: { query: { page_size: 100 } } })),
  })
  const agent = computed(() => agents.data.value?.items.find(({ id: each }) => each === agentId.value) ?? null)

  /** Whoever names the provider: the conversation, or its agent. Null: nobody, so it is the default. */
  const chooser = computed(() => {
    const sources = [conversation() ?? own.value, agent.value]
    return sources.find((source) => source !== null && models.namesProvider(source)) ?? null
  })
  const providerId = computed(() => chooser.value?.provider_id ?? null)
  /** The name of what was chosen and cannot be used any more; null: it can. */
  const lostProvider = computed(() => (chooser.value === null ? models.lostDefault : models.lostProvider(chooser.value)))
  const lostAgent = computed(() => (conversation()?.agent_id == null ? (conversation()?.lost_agent ?? null) : null))
  const provider = computed(() => {
    if (lostProvider.value !== null) return null
    return models.enabled.find((each) => each.id === providerId.value) ?? models.defaultProvider
  })
  /** The model of an agent does not apply to another provider than its own. */
  const agentModel = computed(() => {
    const isOfProvider = chooser.value === null || chooser.value.provider_id === agent.value?.provider_id
    return isOfProvider ? agent.value?.model : null
  })
  const model = computed(() => conversation()?.model || own.value.model || agentModel.value || provider.value?.default_model || '')
  const card = computed(() => {
    const offered = provider.value ? models.offered[provider.value.id] : undefined
    return offered?.cards.find((each) => each.name === model.value) ?? null
  })

  /** Changes the conversation, or what it will begin with. Raises ApiError. */
  async function change(body: Schema<'ConversationChangeBody'>): Promise<Conversation | null> {
    const present = conversation()
    if (present) {
      const changed = await changes.change(present.id, body)
      if (changed.id === id()) onChange(changed)
      return changed
    }
    begun.value = { ...begun.value, ...body }
    return null
  }

  const options = computed<AnswerOptions>(() => ({
    ...(tools.value === 'auto' ? {} : { tools: tools.value === 'all' ? true : tools.value === 'none' ? false : tools.value }),
    ...(thinking.value === null ? {} : { thinking_enabled: thinking.value }),
  }))

  /** The first message was accepted: its choices go on in the conversation, and another chat begins anew. */
  function carryOver(chosen: MessageChoices): void {
    ofMessage.value = { ...chosen, compared: null }
    begun.value = {}
  }

  return {
    begun,
    ofMessage,
    carryOver,
    provider,
    lostProvider,
    lostAgent,
    model,
    agent,
    agents,
    agentId,
    card,
    tools,
    thinking,
    compared,
    options,
    change,
  }
}

export type Choices = ReturnType<typeof useChoices>
