import { defineText, type Texts } from '../text'

const en = {
  provider: 'Provider',
  model: 'Model',
  modelHint: 'Left empty, it is the default model of the provider.',
  tools: 'Tools',
  searchTools: 'Search tools',
  skills: 'Skills',
  searchSkills: 'Search skills',
  agent: {
    provider: 'The default of whoever uses it',
    tools: 'All that its user may use',
    skills: 'All',
    settings: 'As its user has set',
    calls: 'As the server has set',
  },
  seat: {
    provider: 'Your default provider',
    tools: 'All tools that it may use',
    skills: 'All',
    settings: 'As the model’s default',
    calls: 'As the server has set',
  },
  seatOfAgent: { provider: 'As the agent', tools: 'As the agent', skills: 'As the agent', settings: 'As the agent', calls: 'As the agent' },
  maxIterations: 'Model calls per answer',
  chooseProvider: 'Choose another provider, or the default.',
  thinking: 'Thinking',
  thinkingHint: 'Models that can think work on a problem before they answer, which takes longer and costs more.',
  on: 'On',
  off: 'Off',
  reasoningEffort: 'How much it thinks',
  low: 'Little',
  medium: 'Medium',
  high: 'Much',
  planning: 'Planning',
  planningHint: 'A plan splits what you ask for into steps that run at the same time; then the answer is written.',
  slidingWindow: 'Newest messages that it reads',
  slidingWindowHint: '0: all that fit its context window. With a number, the prompt cache of the provider is of no use.',
  slidingWindowInherited: 'As the agent, or the server',
  plannings: { off: 'Never', auto: 'For complex messages', always: 'For every message' },
  memory: 'Memory',
  memoryHint:
    'Luxx stores facts with where they come from, and gives an answer those that fit. The strictest setting of you, project, conversation, room and agent counts. What is written while it is off or asks is never looked through for facts, also not later.',
  memories: { on: 'Use and store facts', ask: 'Use facts; ask before storing one', off: 'Off: read and store nothing' },
  memoryOfProject: 'Memory in this project',
  extraction: 'Facts from conversations',
  extractionHint: 'On: a model looks through your conversations and stores facts, in your budget. Off: only what you or a model store on purpose.',
  extractionOfTenantHint:
    'On: a model looks through what people write in chats and rooms from now on and stores facts, in the budget of each. Everybody can choose otherwise for themselves, and turn memory off.',
  extractions: { default: 'As your tenant has set', on: 'On', off: 'Off' },
  temperature: 'Temperature',
  temperatureHint: 'From 0 (the most likely words) to 2 (varied). Empty: nothing is sent.',
  maxTokens: 'Tokens per answer',
  maxTokensHint: 'An answer is cut there. Empty: what the provider sets, or the model can write.',
}

export type ModelSettingsText = Texts<typeof en>
export const useModelSettingsText = defineText(en, () => import('../zh/modelSettings'))
