import type { ModelSettingsText } from '../en/modelSettings'

const zh: ModelSettingsText = {
  provider: '服务商',
  model: '模型',
  modelHint: '留空则使用服务商的默认模型。',
  tools: '工具',
  searchTools: '搜索工具',
  skills: '技能',
  searchSkills: '搜索技能',
  agent: {
    provider: '使用者的默认服务商',
    tools: '使用者可用的所有工具',
    skills: '全部',
    settings: '按使用者的设置',
    calls: '按服务器的设置',
  },
  seat: { provider: '默认服务商', tools: '所有可用的工具', skills: '全部', settings: '模型默认', calls: '按服务器的设置' },
  seatOfAgent: { provider: '与智能体相同', tools: '与智能体相同', skills: '与智能体相同', settings: '与智能体相同', calls: '与智能体相同' },
  maxIterations: '每个回答的模型调用次数上限',
  chooseProvider: '请选择其他服务商，或使用默认服务商。',
  thinking: '思考',
  thinkingHint: '能够思考的模型会先思考再回答，用时更长，费用更高。',
  on: '开',
  off: '关',
  reasoningEffort: '思考强度',
  low: '低',
  medium: '中',
  high: '高',
  planning: '规划',
  planningHint: '计划会把你的请求拆成可同时进行的步骤，然后写出回答。',
  plannings: { off: '从不', auto: '复杂的消息', always: '每条消息' },
  temperature: '温度',
  temperatureHint: '从 0（最可能的词）到 2（更多变化）。留空则不发送。',
  maxTokens: '每个回答的词元上限',
  maxTokensHint: '超出部分会被截断。留空则采用服务商的设置或模型的上限。',
}

export default zh
