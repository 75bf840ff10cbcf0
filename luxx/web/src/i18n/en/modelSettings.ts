import { defineText, type Texts } from '../text'

const en = {
  thinking: 'Thinking',
  thinkingHint: 'Models that can think work on a problem before they answer, which takes longer and costs more.',
  on: 'On',
  off: 'Off',
  reasoningEffort: 'How much it thinks',
  low: 'Little',
  medium: 'Medium',
  high: 'Much',
  temperature: 'Temperature',
  temperatureHint: 'From 0 (the most likely words) to 2 (varied). Empty: nothing is sent.',
  maxTokens: 'Tokens per answer',
  maxTokensHint: 'An answer is cut there. Empty: what the provider sets, or the model can write.',
}

export type ModelSettingsText = Texts<typeof en>
export const useModelSettingsText = defineText(en, () => import('../zh/modelSettings'))
