import type { SamplesText } from '../en/samples'

const zh: SamplesText = {
  demo: '演示',
  demoHint: '这里的回答是预先写好的。连接并选择模型后才会得到真实回答。',
  openRoom: '打开示例房间',
  openTask: '打开示例任务',
}

export default zh
