import { defineText, type Texts } from '../../text'

const en = {
  title: 'Temporary chat',
  about: 'Not remembered, and deleted when you end it',
  sentence: (minutes: number) =>
    `It is deleted when you end it, or after ${minutes === 1 ? 'a minute' : `${minutes} minutes`} without use. No list and no search has it, and nothing of it is remembered. Files that tools write into your workspace stay.`,
  keep: 'Keep this chat',
  end: 'End',
  kept: 'The chat is kept, as any other.',
  ended: 'The chat is deleted.',
}

export type TemporaryText = Texts<typeof en>
export const useTemporaryText = defineText(en, import.meta.glob('../../*/chat/temporary.ts'))
