import type { NoticesText } from '../en/notices'

const zh: NoticesText = {
  ended: {
    chat: '回答已完成。',
    room: '房间已结束。',
    task: '任务已结束。',
    memory: '事实提取已结束。',
    index: '文档已索引。',
    artifact: '页面已写好。',
    made: '作品已完成。',
    pattern: '学到了一个模式。',
    title: '对话有了标题。',
    follow_ups: '有建议的消息。',
    paused: '已暂停，可以继续。',
  },
  failed: (reason) => (reason ? `失败：${reason}` : '失败了。'),
  wrote: (name) => `${name} 发了一条消息。`,
  invited: (name) => `${name} 将你加为成员。`,
  count: (count) => `${count} 项待处理`,
  expand: '显示待处理事项',
  collapse: '收起通知',
  dismiss: '忽略',
  answer: '回答',
  show: '查看',
  newMessages: '有新消息',
  approveTask: '计划等待你批准。',
  approveSteps: (names) => `等待你批准：${names}`,
  approve: '批准',
  chooseSpeaker: '接下来由谁发言？',
  elsewhere: '打开后继续。',
  ofModel: '由模型显示',
}

export default zh
