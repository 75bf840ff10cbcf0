import { defineText, type Texts } from '../text'

const en = {
  conversations: 'Conversations',
  newChat: 'New chat',
  searchPlaceholder: 'Search conversations',
  pinned: 'Pinned',
  recent: 'Recent',
  archived: 'Archived',
  showArchived: 'Show archived',
  hideArchived: 'Hide archived',
  untitled: 'New chat',
  noneTitle: 'No conversations yet',
  noneText: 'Write a message at the right, and it begins here.',
  noMatchTitle: 'Nothing found',
  noMatchText: 'No conversation has these words. Try fewer of them.',
  pin: 'Pin',
  unpin: 'Unpin',
  archive: 'Archive',
  unarchive: 'Take out of the archive',
  deleteTitle: 'Delete this conversation?',
  deleteText: (title: string) => `“${title}” and all its messages will be gone for good. What runs in it stops.`,
  newTitle: 'Title',
}

export type ChatText = Texts<typeof en>
export const useChatText = defineText(en, () => import('../zh/chat'))
