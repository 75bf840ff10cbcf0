import { defineText, type Texts } from '../../text'

const en = {
  suggestions: 'Suggestions',
  recent: 'Go on with',
  others: 'More than a chat',
  room: 'Start a room',
  roomAbout: 'Several agents discuss a question',
  task: 'Plan a task',
  taskAbout: 'Steps that run by themselves',
  prompts: {
    weekend: { label: 'Make a plan', text: 'Plan a weekend in Lisbon for two people who like food and walking: Friday evening to Sunday.' },
    letter: { label: 'Write a message', text: 'Write a short, friendly message that moves tomorrow’s meeting to Thursday at ten.' },
    explain: { label: 'Explain something', text: 'Explain what a hash table is, with an example from everyday life.' },
    compare: { label: 'Compare two things', text: 'Compare a heat pump and a gas boiler for an old house, as a table.' },
    languages: { label: 'Say hello', text: 'Say “good morning” in French, Spanish and German.' },
    names: { label: 'Find names', text: 'Name five fruits.' },
    calculate: { label: 'Calculate', text: 'Calculate with Python what 200 a month at 4 % interest are after 20 years, year by year, as a table.' },
    slides: { label: 'Make slides', text: 'Make five slides that explain to new colleagues how a good code review goes.' },
    search: { label: 'Search the web', text: 'Search the web for this week’s news about renewable energy and summarise it with sources.' },
    files: { label: 'Look at my files', text: 'Which files are in my workspace, and what is in the newest of them?' },
  },
}

export type StartText = Texts<typeof en>
export const useStartText = defineText(en, import.meta.glob('../../*/chat/start.ts'))
