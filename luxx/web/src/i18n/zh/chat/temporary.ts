import type { TemporaryText } from '../../en/chat/temporary'

const zh: TemporaryText = {
  title: '临时对话',
  about: '不会被记住，结束后即删除',
  sentence: (minutes) =>
    `它会在你结束时删除，或在 ${minutes} 分钟未使用后删除。列表和搜索中都没有它，其中的内容不会被记住。工具写入你工作区的文件会保留。`,
  keep: '保留这个对话',
  end: '结束',
  kept: '这个对话已像其他对话一样保留。',
  ended: '这个对话已删除。',
}

export default zh
