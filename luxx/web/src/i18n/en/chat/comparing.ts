import { defineText, type Texts } from '../../text'

const en = {
  title: 'Two answers to compare',
  making: 'Two models answer your last message, each in a run of its own. Once both have ended, you keep one.',
  choose: 'Keep the answer that the chat goes on with. The other one stays as a version of it. Until then, the next message is refused.',
  answerOf: (model: string) => `Answer of ${model}`,
  keep: 'Keep this one',
  keepOf: (model: string) => `Keep this one, of ${model}`,
  waits: 'The other answer is still being made: wait for it, or stop it.',
  stop: (model: string) => `Stop ${model}`,
}

export type ComparingText = Texts<typeof en>
export const useComparingText = defineText(en, import.meta.glob('../../*/chat/comparing.ts'))
