import type { UsageText } from '../en/usage'

const zh: UsageText = {
  title: '用量',
  period: '时间段',
  lastDays: (days) => `最近 ${days} 天`,
  groupBy: '分组',
  groups: { day: '日期', model: '模型', provider: '服务商', conversation: '对话', room: '房间', task: '任务', user: '用户', tenant: '租户' },
  show: '图表',
  measures: { tokens: '词元', cost: '费用' },
  scope: '范围',
  scopes: { own: '我的', tenant: '我的租户', all: '整个服务器' },
  calls: '模型调用',
  tokens: '词元',
  prompt: '输入',
  cached: '来自缓存',
  completion: '输出',
  cost: '费用',
  unknown: '未知',
  atLeast: (cost) => `至少 ${cost}`,
  deleted: '已删除',
  chartLabel: (measure, group) => `按${group}的${measure}；下表有同样的数字`,
  noneTitle: '没有用量',
  noneText: '此时间段内没有模型调用。',
  more: (count) => `另有 ${count} 项计入总和，但不在表中。`,
  unpriced: (count) => `${count} 次调用的价格未知，不计入费用。`,
  estimated: (count) => `${count} 次调用的词元数是估计值：调用提前结束，或服务商没有报告。`,
  limits: '今日限额',
  tokensToday: '词元',
  sharedTokensToday: '共享服务商的词元',
  costToday: '费用',
  noLimit: '无限制',
  of: (spent, limit) => `${spent} / ${limit}`,
  reserved: (amount) => `另有 ${amount} 为进行中的调用保留。`,
  resets: (at) =>
    `今日结束于 ${new Intl.DateTimeFormat('zh-CN', { dateStyle: 'medium', timeStyle: 'short' }).format(at)}。限额在服务器的配置中设置。`,
}

export default zh
