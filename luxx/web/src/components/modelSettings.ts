/** The settings of model calls as forms change them: of an agent, a seat, and a user's defaults. */
import type { Schema } from '@/api/types'

export type ModelSettings = Pick<Schema<'AgentView'>, 'temperature' | 'max_tokens' | 'thinking_enabled' | 'reasoning_effort'>

/** Empty: left to what is asked next, such as the agent of a seat, or the model. */
export interface ModelSettingsDraft {
  temperature: string
  maxTokens: string
  thinking: '' | 'on' | 'off'
  reasoningEffort: '' | NonNullable<ModelSettings['reasoning_effort']>
}

/** The fields that the form begins with; `isOwn`: whether a stored value is its own, and not inherited. */
export function settingsDraft(stored: ModelSettings | null, isOwn: (field: keyof ModelSettings) => boolean = () => true): ModelSettingsDraft {
  const own = <Field extends keyof ModelSettings>(field: Field): ModelSettings[Field] | null =>
    stored !== null && isOwn(field) ? stored[field] : null
  const thinking = own('thinking_enabled')
  return {
    temperature: String(own('temperature') ?? ''),
    maxTokens: String(own('max_tokens') ?? ''),
    thinking: thinking === null ? '' : thinking ? 'on' : 'off',
    reasoningEffort: own('reasoning_effort') ?? '',
  }
}

export function settingsBody(draft: ModelSettingsDraft): ModelSettings {
  return {
    temperature: numberIn(draft.temperature),
    max_tokens: numberIn(draft.maxTokens),
    thinking_enabled: draft.thinking === '' ? null : draft.thinking === 'on',
    // A draft that an earlier version kept has no effort.
    reasoning_effort: draft.reasoningEffort || null,
  }
}

/** The number in a field; null where it is empty. A field of numbers holds one. */
export function numberIn(typed: string | number): number | null {
  return String(typed).trim() === '' ? null : Number(typed)
}
