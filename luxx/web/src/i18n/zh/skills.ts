import type { SkillsText } from '../en/skills'

const zh: SkillsText = {
  title: '技能',
  about: '模型需要时加载的说明。项目的技能会遮盖租户的同名技能，租户的会遮盖系统的。',
  search: '搜索技能',
  add: '添加技能',
  write: '编写技能',
  upload: '上传',
  uploadLabel: '上传 SKILL.md 或 ZIP 文件',
  drop: '把 SKILL.md 或 ZIP 文件拖到这里',
  uploaded: (name) => `已添加技能 ${name}。`,
  place: '适用范围',
  placeHint: '租户的技能在管理员审核之后供所有人使用。',
  places: { tenant: '租户中的所有人', project: (name) => `项目 ${name}` },
  noPlace: '您可以为自己的项目添加技能；请先创建项目。',
  none: '没有技能',
  noneText: '上传技能，编写技能，或把带有 SKILL.md 的文件夹放入数据目录的 skills/ 中。',
  noMatch: '没有这样的技能',
  noMatchText: '没有名称或描述包含这些词。',
  scopes: { system: '系统', tenant: '租户', project: '项目' },
  states: { ready: '可用', disabled: '已停用', hidden: '被更近的技能遮盖', unreviewed: '未审核', unusable: '无法使用' },
  stateTexts: {
    ready: '',
    disabled: '没有运行会使用它。',
    hidden: '运行使用另一个技能代替它。',
    unreviewed: '在管理员阅读其当前内容之前，只有创建者的运行可以使用它。',
    unusable: '',
  },
  allowedTools: (names) => `激活时可用的工具：${names}`,
  noTools: '无',
  allTools: '激活时工具不变',
  unknownTools: (names) => `此处没有：${names}`,
  triggers: (phrases) => `用于：${phrases}`,
  version: (version) => `版本 ${version}`,
  try: '一个请求需要哪个技能？',
  tryHint: '与消息一样按词匹配，不使用模型。上面所选项目的技能也会计入。',
  match: '匹配',
  nothingMatches: '没有技能与此请求有共同的词。',
  definition: '这是在问一个词的含义，因此不需要技能。',
  asksFor: '需要',
  below: '低于阈值',
  score: (score, threshold) => `${score} / ${threshold}`,
  text: 'SKILL.md',
  textHint: '名称、描述和其他键写在两行 --- 之间，说明写在下面。',
  saved: '已保存。',
  reviewEnds: '更改会使审核失效。',
  review: '标记为已审核',
  reviewed: '已审核：此内容视为可信。',
  enable: '启用',
  disable: '停用',
  disableForTenant: '为租户停用',
  enableForTenant: '为租户恢复',
  replacedBy: '在租户中替换为',
  notReplaced: '不替换',
  export: '下载 ZIP',
  delete: '删除技能',
  deleteTitle: '删除此技能？',
  deleteText: (name) => `将删除 ${name} 及其文件。已用它开始的运行会保留它。`,
  exampleText: `---
name: 会议纪要
description: 撰写会议纪要。有人需要会议记录时使用。
triggers: [会议纪要, 会议记录]
---

写明谁参加了会议、决定了什么，以及谁在何时之前做什么。
`,
}

export default zh
