import { defineText, type Texts } from '../text'

const en = {
  ended: {
    chat: 'The answer is ready.',
    room: 'The room has ended.',
    task: 'The task has ended.',
    memory: 'The extraction of facts has ended.',
    index: 'The documents are indexed.',
    artifact: 'The page is written.',
    made: 'The artifact is ready.',
    pattern: 'A pattern was learned.',
    title: 'The conversation has a title.',
    follow_ups: 'Messages are suggested.',
    paused: 'Paused; it can be resumed.',
  },
  failed: (reason: string) => (reason ? `It failed: ${reason}` : 'It failed.'),
  wrote: (name: string) => `${name} wrote a message.`,
  invited: (name: string) => `${name} made you a member.`,
  count: (count: number) => `${count} waiting`,
  expand: 'Show what waits',
  collapse: 'Fold the notices',
  dismiss: 'Dismiss',
  answer: 'Answer',
  show: 'Show',
  newMessages: 'new messages',
  approveTask: 'The plan waits for your approval.',
  approveSteps: (names: string) => `Waits for your approval: ${names}`,
  approve: 'Approve',
  chooseSpeaker: 'Who speaks next?',
  elsewhere: 'Open it to go on.',
  ofModel: 'Shown by the model',
}

export type NoticesText = Texts<typeof en>
export const useNoticesText = defineText(en, import.meta.glob('../*/notices.ts'))
