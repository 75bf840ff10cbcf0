import type { ExplainText } from '../../en/tools/explain'

const zh: ExplainText = {
  title: '原因',
  why: '为什么要问？',
  whyDecided: '由哪条规则决定？',
  hide: '隐藏原因',
  actions: { allow: '允许', ask: '询问', deny: '拒绝' },
  verdicts: { allow: '允许', ask: '需要询问', deny: '拒绝' },
  decidedBy: {
    level: '由你的级别决定',
    members: '由它组合的工具决定',
    memory: '由它对记忆的操作决定',
    not_understood: '此调用不能完全理解',
    offer: '此运行未提供该工具',
    question: '此工具只提问',
    risk: '没有匹配的规则，由工具的风险决定',
    rule: '由规则决定',
    sandbox: '没有匹配的规则，由沙箱决定',
    skill: '由激活的技能决定',
    taint: '此运行读过外来文本',
  },
  because: (reason) => `因为：${reason}`,
  rule: (scope, number) => `${scope}第 ${number} 条规则：`,
  scopes: { server: '服务器的', tenant: '租户的', user: '你的', project: '项目的', agent: '智能体的' },
  now: '按现在的规则。',
  nowWithoutContext: '按现在的规则。这里不考虑项目或智能体的规则，以及运行读过的外来文本。',
  openRules: '打开规则',
}

export default zh
