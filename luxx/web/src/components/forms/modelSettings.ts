/** What agents and seats answer with, and the settings of model calls, as forms change them. */
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

/** The choice of a provider that is gone: it stays until another, or the default, is chosen. */
export const GONE = 'gone'

type Answerer = ModelSettings & Pick<Schema<'AgentView'>, 'provider_id' | 'lost_provider' | 'model' | 'tools' | 'skills' | 'max_iterations'>

/** What an agent or a seat answers with. */
export interface AnswererDraft extends ModelSettingsDraft {
  /** An id as text; empty: what counts where none is chosen. */
  provider: string
  model: string
  tools: string[]
  hasTools: boolean
  skills: string[]
  hasSkills: boolean
  maxIterations: string
}

export function answererDraft(stored: Answerer | null, isOwn: (field: keyof Answerer) => boolean = () => true): AnswererDraft {
  const own = <Field extends keyof Answerer>(field: Field): Answerer[Field] | null => (stored !== null && isOwn(field) ? stored[field] : null)
  const isGone = stored !== null && stored.provider_id === null && stored.lost_provider !== null
  return {
    provider: isGone ? GONE : String(own('provider_id') ?? ''),
    model: own('model') ?? '',
    tools: [...(own('tools') ?? [])],
    hasTools: own('tools') !== null,
    skills: [...(own('skills') ?? [])],
    hasSkills: own('skills') !== null,
    maxIterations: String(own('max_iterations') ?? ''),
    ...settingsDraft(stored, isOwn),
  }
}

/** A provider that is gone is left out: a change of the rest leaves it as it is. */
export function answererBody(draft: AnswererDraft) {
  return {
    ...(draft.provider === GONE ? {} : { provider_id: numberIn(draft.provider) }),
    model: draft.model.trim() || null,
    tools: draft.hasTools ? draft.tools : null,
    skills: draft.hasSkills ? draft.skills : null,
    max_iterations: numberIn(draft.maxIterations),
    ...settingsBody(draft),
  }
}

/** The number in a field; null where it is empty. A field of numbers holds one. */
export function numberIn(typed: string | number): number | null {
  return String(typed).trim() === '' ? null : Number(typed)
}
