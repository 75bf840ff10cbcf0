import type { ChatText } from '../en/chat'

const zh: ChatText = {
  conversations: '对话',
  newChat: '新对话',
  searchPlaceholder: '搜索对话',
  pinned: '已置顶',
  recent: '最近',
  archived: '已归档',
  showArchived: '显示已归档',
  hideArchived: '隐藏已归档',
  untitled: '新对话',
  noneTitle: '还没有对话',
  noneText: '在右侧写下第一条消息，对话就从这里开始。',
  noMatchTitle: '没有找到',
  noMatchText: '没有对话包含这些词，请减少关键词。',
  pin: '置顶',
  unpin: '取消置顶',
  archive: '归档',
  unarchive: '移出归档',
  deleteTitle: '删除这个对话？',
  deleteText: (title) => `“${title}”及其全部消息将被永久删除，其中正在运行的工作会停止。`,
  newTitle: '标题',
}

export default zh
