import type { StartText } from '../../en/chat/start'

const zh: StartText = {
  suggestions: '建议',
  recent: '继续',
  others: '不只是对话',
  room: '新建房间',
  roomAbout: '由多个智能体讨论一个问题',
  task: '规划任务',
  taskAbout: '自动运行的一组步骤',
  prompts: {
    weekend: { label: '制定计划', text: '为喜欢美食和散步的两个人安排一个杭州周末：从周五晚上到周日。' },
    letter: { label: '写一条消息', text: '写一条简短友好的消息，把明天的会议改到周四上午十点。' },
    explain: { label: '解释概念', text: '用一个生活中的例子解释什么是哈希表。' },
    compare: { label: '比较两样东西', text: '用表格比较老房子使用热泵和燃气锅炉的优缺点。' },
    languages: { label: '问好', text: '用法语、西班牙语和德语说“早上好”。' },
    names: { label: '列举', text: '说出五种水果。' },
    calculate: { label: '计算', text: '用 Python 计算每月存 200、年利率 4 %，20 年后有多少，按年列成表格。' },
    slides: { label: '制作幻灯片', text: '制作五页幻灯片，向新同事说明怎样做好代码评审。' },
    search: { label: '搜索网页', text: '在网上搜索本周关于可再生能源的新闻，并附来源做总结。' },
    files: { label: '查看我的文件', text: '我的工作区里有哪些文件？最新的一个里面是什么？' },
  },
}

export default zh
