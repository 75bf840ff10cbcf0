import type { ToolViewsText } from '../../en/tools/views'

const zh: ToolViewsText = {
  asked: '请求的内容',
  stdout: '输出',
  stderr: '错误输出',
  exitCode: (code) => `退出码 ${code}`,
  limit: (name) => `达到限制而结束：${name}`,
  noOutput: '没有输出',
  difference: '改动',
  differenceOf: (path) => `${path} 中的改动`,
  file: '文本',
  showAll: (count) => `显示全部 ${count} 行`,
  showLess: '收起',
  firstRows: (shown, all) => `共 ${all} 行，显示前 ${shown} 行。`,
  firstOf: (shown, all) => `共 ${all} 项，显示前 ${shown} 项。`,
  table: '表格',
  hits: '找到的内容',
  done: '已完成',
  open: '未完成',
  fields: '各项的值',
  noArguments: '没有参数',
  riskIs: { low: '低风险', medium: '中风险', high: '高风险' },
  does: { read: '读取', write: '写入', run: '运行命令', network: '使用网络', server: '调用 MCP 服务器的工具' },
}

export default zh
