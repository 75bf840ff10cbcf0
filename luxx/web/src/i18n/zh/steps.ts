import type { StepsText } from '../en/steps'

const ANSWERS: Record<string, string> = { once: '仅此一次', always: '始终允许', reject: '拒绝' }

const LOOP_ANSWERS = { stop: '结束此回答', continue: '继续', skip: '跳过此次调用', correct: '更正' }

const zh: StepsText = {
  plan: '计划',
  stepsEnded: (ended, all) => `${ended}/${all} 个步骤`,
  needs: (names) => `需要：${names}`,
  skippedBecause: (name) => `已跳过：${name} 没有结果。`,
  thinking: '思考中',
  thought: '思考',
  thoughtFor: (duration) => `思考了 ${duration}`,
  interrupted: '已中断，下文重新生成',
  arguments: '参数',
  output: '输出',
  noOutput: '没有输出',
  untrusted: '来自外部：这些内容可能试图误导模型。',
  showAll: '显示完整输出',
  outcomes: { denied: '被规则拒绝', rejected: '已拒绝', corrected: '已按修改执行' },
  calls: (count) => `${count} 次调用`,
  subagent: '子智能体',
  subagentCalls: (count) => `${count} 次工具调用`,
  subagents: '子智能体',
  subagentTask: (name, task) => `${name}：${task}`,
  strategies: { parallel: '同时进行', sequential: '依次进行，每个任务都会得到前面的答案' },
  question: '问题',
  permission: '请求许可',
  because: (reason) => `询问原因：${reason}。`,
  once: '仅此一次',
  onceEdited: '按修改后的参数运行一次',
  onceHint: '执行这次调用',
  always: '始终允许',
  alwaysHint: (usual) => `执行，并添加允许 ${usual} 的规则`,
  reject: '拒绝',
  editArguments: '编辑参数',
  argumentsWrong: '这不是有效的 JSON。',
  note: '给模型的说明',
  notePlaceholder: '原因，或者应当怎么做',
  ownAnswer: '自行填写',
  recommended: '推荐',
  mayNotAnswer: '由房主或有主持权限的成员回答。',
  send: '回答',
  wasAsked: '此时运行在等待回答。',
  optional: '如不回答，将采用推荐选项。',
  given: (answer) =>
    [answer]
      .flat()
      .map((each) => ANSWERS[each] ?? each)
      .join('、'),
  loopAnswers: LOOP_ANSWERS,
  loopHints: {
    stop: '已产生的内容会保留',
    continue: '执行此调用；本次回答中不再因重复而询问',
    skip: '不执行此调用，并告知模型',
    correct: '',
  },
  loopCorrect: '发送更正',
  loopNotePlaceholder: '应当怎么做',
  givenOnLoop: (answer) => LOOP_ANSWERS[answer as keyof typeof LOOP_ANSWERS] ?? String(answer),
  answered: (answer) => `已回答：${answer}`,
  answeredByTimeout: (answer) => `超时未回答：${answer}`,
  answeredByRule: '已由另一回答添加的规则允许',
  retrying: (attempt, reason) => `正在重试（第 ${attempt} 次）：${reason}`,
  compressed: (messages, results) =>
    !messages && results
      ? `上下文已满：${results} 个较早的工具结果只向模型发送开头和结尾。`
      : `上下文已满：最早的 ${messages} 条消息不再发送给模型。`,
  summarised: (messages) => `较早的 ${messages} 条消息已为模型总结。`,
  readsAll: '上下文空间充足：模型重新读取整个对话。',
  tainted: (tool) => `${tool} 带入了外部内容，可能造成危害的调用会先询问。`,
  verdict: (isOfAnswer, by, result, reasons) =>
    `${by === 'model' ? '模型检查' : '检查'}${isOfAnswer ? '回答' : '结果'}：${{ valid: '通过', invalid: '未通过', unsure: '无法判断' }[result]}。${reasons}`,
  superseded: '未通过检查的回答',
  skill: (name) => `已启用技能 ${name}`,
  loop: (kind, tool, times) => (kind === 'error' ? `${tool} 已以相同方式失败 ${times} 次；已告知模型。` : '模型在重复自己。'),
  memoriesUsed: (count) => `使用了 ${count} 条记忆`,
  forgetMemory: '永久忘记这条记忆',
  memoryForgotten: '已忘记。',
  memoriesGone: '其中一些此后已被删除。',
  sources: '来源',
  placeOf: ({ page, slide, row, last_row: last }) =>
    page ? `第 ${page} 页` : slide ? `第 ${slide} 张` : row ? (last && last !== row ? `第 ${row} 至 ${last} 行` : `第 ${row} 行`) : '',
  steered: '你在回答进行时写道：',
  reminded: '已提醒模型还有未完成的事项。',
  skillMatched: (name, score) => `已启用技能 ${name}：消息的用词与它相符（得分 ${score}）`,
  agentMatched: (name, score) => `由 ${name} 回答：消息的用词与这个智能体相符（得分 ${score}）`,
  skillAsked: (name) => `消息的用词与技能 ${name} 相符。`,
  agentAsked: (name) => `由 ${name} 回答，因为消息的用词与这个智能体相符。`,
  skillGiven: (name: string) => `已启用技能 ${name}。`,
}

export default zh
