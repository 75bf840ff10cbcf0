import { defineText, type Texts } from '../text'

const en = {
  memories: 'Memory',
  fact: 'Fact',
  newFact: 'New fact',
  createFact: 'Remember something',
  searchPlaceholder: 'Search memory',
  noMatchTitle: 'Nothing found',
  noMatchText: 'No fact has all these words. Try fewer words.',
  noneTitle: 'Nothing is remembered yet',
  noneText:
    'Add a fact with the + above, ask an assistant in a chat to remember something, or turn on facts from conversations in Settings, Defaults.',
  homeTitle: 'What Luxx knows',
  homeText:
    'Facts that you, assistants and your conversations have stored, each with where it comes from. What fits a message is given to the model with it. You can change, undo and delete all of it.',
  allCategories: 'All categories',
  category: 'Category',
  categories: { preference: 'Preference', knowledge: 'Knowledge', history: 'History' },
  scope: 'Whose memory',
  scopeHint: 'Your own memory is read in your chats only.',
  scopeName: (scope: string) => {
    const kind = scope.split(':')[0] ?? ''
    return { user: 'Yours', tenant: 'Everybody in the tenant', project: 'Project', room: 'Room' }[kind] ?? kind
  },
  text: 'Fact',
  textHint: 'One sentence that can be understood without its context.',
  pinned: 'Pinned',
  pin: 'Pin',
  pinHint: 'It is found before others, and no extraction ends it.',
  more: 'Connections and times',
  subject: 'Subject',
  predicate: 'Relation',
  object: 'Object',
  validAt: 'True since',
  invalidAt: 'True until',
  saved: 'Saved.',
  untitled: 'Untitled',
  untrusted: 'not trusted',
  untrustedHint: 'It was written down while untrusted content was read, so it counts less.',
  retired: 'Luxx does not use this any more. Restore it to change it.',
  restore: 'Restore',
  why: 'Where this comes from',
  sources: { message: 'A message', document: 'A document', page: 'A web page', person: 'Added by a person' },
  openMessage: 'Open the conversation',
  history: 'Changes',
  changes: { edit: 'Changed', retire: 'Ended by what was said later', restore: 'Restored', merge: 'Merged', split: 'Split' },
  undo: 'Undo',
  undone: 'Undone',
  forget: 'Forget',
  forgetTitle: 'Forget this fact?',
  forgetText:
    'Its text, its history and what only it supports are deleted for good, within a minute also from the files of the database. Messages, logs of runs and backups keep their own copies.',
  problems: (count: number) => (count === 1 ? '1 part was not read' : `${count} parts were not read`),
  retry: 'Try again',
}

export type MemoriesText = Texts<typeof en>
export const useMemoriesText = defineText(en, import.meta.glob('../*/memories.ts'))
