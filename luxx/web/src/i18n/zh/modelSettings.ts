import type { ModelSettingsText } from '../en/modelSettings'

const zh: ModelSettingsText = {
  thinking: '思考',
  thinkingHint: '能够思考的模型会先思考再回答，用时更长，费用更高。',
  on: '开',
  off: '关',
  reasoningEffort: '思考强度',
  low: '低',
  medium: '中',
  high: '高',
  temperature: '温度',
  temperatureHint: '从 0（最可能的词）到 2（更多变化）。留空则不发送。',
  maxTokens: '每个回答的词元数',
  maxTokensHint: '超出部分会被截断。留空则采用服务商的设置或模型的上限。',
}

export default zh
