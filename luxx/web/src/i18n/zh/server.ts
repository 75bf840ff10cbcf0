/**
 * What the server writes for people, in Chinese. A sentence is looked up as a whole, then by its pattern, then by the
 * kind of its error. `{}` stands for a value; `{1}` puts the first one into the translation, `{+1}` translates it too.
 */
import type { ServerText } from '../en/server'
import { SENTENCES_OF_ARTIFACTS } from './sentences/artifacts'
import { SENTENCES_OF_DOCUMENTS } from './sentences/documents'
import { SENTENCES_OF_MCP } from './sentences/mcp'
import { SENTENCES as SENTENCES_OF_ALL } from './sentences/others'
import { SENTENCES_OF_TOOLS } from './sentences/tools'

const SENTENCES: Record<string, string> = {
  ...SENTENCES_OF_TOOLS,
  ...SENTENCES_OF_DOCUMENTS,
  ...SENTENCES_OF_MCP,
  ...SENTENCES_OF_ALL,
  ...SENTENCES_OF_ARTIFACTS,
}

/** What sentences are put together from: what stands behind "must be", and amounts. */
const PARTS: Record<string, string> = {
  '{}, or null': '{+1}，或留空',
  '{}, or {}': '{+1}，或{+2}',
  'text of {} to {} characters: {}': '{1} 至 {2} 个字符的文字，即{+3}',
  'text of at most {} characters: {}': '最多 {1} 个字符的文字，即{+2}',
  'text with a visible character': '至少有一个可见字符的文字',
  'one line without control characters': '不含控制字符的一行文字',
  'one line with a visible character': '至少有一个可见字符的一行文字',
  'one line, as copied': '一行文字',
  'lowercase letters, digits and hyphens, not beginning with a hyphen': '小写字母、数字和连字符，不以连字符开头',
  'text of {} to {} characters': '{1} 至 {2} 个字符的文字',
  'text from {} to {} characters': '{1} 至 {2} 个字符的文字',
  'text of at most {} characters': '最多 {1} 个字符的文字',
  'text of at least {} character': '至少 {1} 个字符的文字',
  'text of at least {} characters': '至少 {1} 个字符的文字',
  text: '文字',
  'a whole number from {} to {}': '{1} 至 {2} 的整数',
  'a whole number of at least {}': '不小于 {1} 的整数',
  'a whole number': '整数',
  'a number from {} to {}': '{1} 至 {2} 的数',
  'a number of at least {}': '不小于 {1} 的数',
  'a number': '数',
  'true or false': 'true 或 false',
  'a JSON object': 'JSON 对象',
  'one of {}': '下列之一：{1}',
  '{} tokens': '{1} 个词元',
  ' at shared providers': '在共享的服务商上',
  'one of: {}': '下列之一：{1}',
  'a list of at most {} items, each {}': '最多 {1} 项的列表，每项为{+2}',
  'a list of {} to {} items, each {}': '{1} 至 {2} 项的列表，每项为{+3}',
  'a list, each {}': '列表，每项为{+1}',
  'another value': '其他值',
  null: '空',
  'a time with a time zone, such as {}': '带时区的时间，例如 {1}',
  'a date, such as {}': '日期，例如 {1}',
  ' in line {}': '（第 {1} 行）',
  'for all calls': '针对所有调用的',
  'for exactly this call, or for all calls,': '正好针对此次调用，或针对所有调用的',
  "the {}'s rule {} {}: {}": '{+1}的第 {2} 条规则：{4}',
  ' without network': '（无网络）',
  ' (network: only HTTP and HTTPS to {}, by the proxy in HTTP_PROXY; if that is not set, none)':
    '（网络：只能通过 HTTP_PROXY 中的代理以 HTTP 和 HTTPS 访问 {1}；未设置则无网络）',
  user: '用户',
  tenant: '租户',
  project: '项目',
  agent: '智能体',
  server: '服务器',
  tool: '工具',
  skill: '技能',
  provider: '服务商',
  low: '低',
  medium: '中',
  high: '高',
  critical: '极高',
  READ_ONLY: '只读',
  WRITE: '写入',
  EXECUTE: '执行',
  ADMIN: '管理员',
}

/** What is true of every error of a kind. `{}` is the server's sentence. */
const KINDS: Record<string, string> = {
  not_signed_in: '请先登录。',
  token_invalid: '登录凭证无效；请重新登录。',
  ticket_invalid: '连接凭证无效或已过期；请刷新页面。',
  key_refused: 'API 密钥不能做这件事；请用用户名和密码登录。',
  provider_key_refused: '服务商拒绝了密钥；请检查密钥。（{}）',
  provider_out_of_credit: '服务商的账户余额不足。（{}）',
  provider_content_refused: '服务商拒绝了这项内容。（{}）',
  provider_refused: '服务商拒绝了请求。（{}）',
  provider_quota: '服务商的配额已用完。（{}）',
  provider_overloaded: '服务商过载；请稍后再试。（{}）',
  provider_failed: '服务商出错。（{}）',
  provider_unreachable: '无法连接服务商；请检查地址和网络。（{}）',
  provider_stalled: '服务商长时间没有发送数据。（{}）',
  provider_dropped: '服务商的回答在中途断开了。（{}）',
  provider_garbled: '服务商的回答无法读取。（{}）',
  rate_limited: '服务商限制了请求频率；请稍后再试。（{}）',
  context_too_long: '内容超出了模型的上下文长度。（{}）',
  provider_disabled: '服务商已停用；请启用它或另选一个。',
  provider_not_found: '服务商不存在，已被删除或不再与你共享；请另选一个。',
  provider_not_shared: '服务商没有共享；请先共享它，或另选一个。',
  agent_not_found: '智能体不存在，已被删除或不再共享；请另选一个。',
  model_unlisted: '服务商没有列出这个模型。（{}）',
  model_not_found: '没有这个模型。（{}）',
  quota_exceeded: '超出了存储空间的上限；请删除不再需要的内容。（{}）',
  attachment_unreadable: '无法读取附件。（{}）',
  password_refused: '密码不可用。（{}）',
  too_large: '内容太大。（{}）',
  too_many: '次数过多；请稍后再试。',
  run_active: '正在运行；请等待或停止它。',
  task_not_running: '此任务没有在运行。',
  database_unavailable: '数据库没有响应；请稍后再试。',
  unavailable: '服务器的一部分暂时不可用。（{}）',
  internal_error: '内部错误；请查看服务器日志。',
  path_refused: '此路径不可用。（{}）',
  arguments_invalid: '参数无效。（{}）',
  graph_invalid: '步骤图无效。（{}）',
  task_invalid: '任务文件无效。（{}）',
  user_not_found: '没有这位用户。',
}

type Pattern = [pattern: RegExp, translation: string]

/** In their order: one that may fit what others mean stands after them. */
function patternsOf(catalog: Record<string, string>): Pattern[] {
  return Object.entries(catalog).map(([sentence, translation]) => {
    const source = sentence
      .split('{}')
      .map((words) => words.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
      .join('(.*?)')
    const first = source.replace(/^[a-z]/, (letter) => `[${letter}${letter.toUpperCase()}]`)
    return [new RegExp(`^${first}\\.?$`, 's'), translation]
  })
}

const sentences = patternsOf(SENTENCES)
const parts = patternsOf(PARTS)

function lookUp(text: string, patterns: readonly Pattern[]): string | null {
  const whole = SENTENCES[text.charAt(0).toLowerCase() + text.slice(1).replace(/\.$/, '')]
  if (whole) return whole
  for (const [pattern, translation] of patterns) {
    const values = pattern.exec(text)
    if (values) return filled(translation, values)
  }
  return null
}

function filled(translation: string, values: readonly string[]): string {
  return translation.replace(/\{(\+?)(\d)\}/g, (_, nested: string, index: string) => {
    const value = values[Number(index)] ?? ''
    return nested ? (PARTS[value] ?? lookUp(value, [...sentences, ...parts]) ?? value) : value
  })
}

/** Several problems of the same thing, each of which has a translation; a sentence may have "; " in it too. */
function together(text: string): string | null {
  const parts = text.split('; ')
  let translated = ''
  for (let begin = 0; begin < parts.length;) {
    let end = parts.length
    let found: string | null = null
    while (end > begin && (found = lookUp(parts.slice(begin, end).join('; '), sentences)) === null) end -= 1
    if (found === null) return null
    translated += found
    begin = end
  }
  return translated
}

const zh: ServerText = {
  translate(sentence, kind = '') {
    return lookUp(sentence, sentences) ?? together(sentence) ?? KINDS[kind]?.replace('{}', () => sentence) ?? sentence
  },
}

export default zh
