import type { ComparingText } from '../../en/chat/comparing'

const zh: ComparingText = {
  title: '要比较的两个回答',
  making: '两个模型同时回答你的上一条消息，各自单独运行。两者都结束后，由你保留其中一个。',
  choose: '请保留让对话继续的回答。另一个会作为它的另一个版本留下。在此之前，下一条消息会被拒绝。',
  answerOf: (model) => `${model} 的回答`,
  keep: '保留这个',
  keepOf: (model) => `保留这个：${model}`,
  waits: '另一个回答仍在生成：请等待或停止它。',
  stop: (model) => `停止 ${model}`,
}

export default zh
