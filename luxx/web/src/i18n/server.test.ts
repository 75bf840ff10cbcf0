import { expect, test } from 'vitest'
import zh from './zh/server'

const { translate } = zh

test.each([
  ['wrong username or password', 'sign_in_failed', '用户名或密码错误。'],
  ['The judge could not decide: it did not answer within 30 seconds.', '', '评判者无法判断：它在 30 秒内没有回答。'],
  ['shell_execute ended with exit code 1.', '', 'shell_execute 以退出码 1 结束。'],
  ['This run has ended. Not a sentence of the server', '', 'This run has ended. Not a sentence of the server'],
  ['Notes.pdf is encrypted; use a copy without a password', 'attachment_unreadable', 'Notes.pdf 已加密；请使用没有密码的副本。'],
  ['Writer failed 3 times in a row and is muted now. Unmute it to let it speak again.', '', 'Writer 连续失败 3 次，已被静音。取消静音后可再次发言。'],
  ['too many attempts to sign in; try again in 7 s', 'too_many', '登录尝试次数过多。请在 7 秒后再试。'],
  [
    'this needs permission level 4 (ADMIN); yours is 3 (EXECUTE); an administrator can raise it',
    '',
    '这需要“管理员”级别，你的级别是“执行”；管理员可以提高它。',
  ],
  ['too many requests; try again in 1 s', 'too_many', '请求次数过多。请在 1 秒后再试。'],
  [
    'was ended: it sent a message of more than 16 MiB; Luxx tries again only after a restart',
    '',
    '已被结束：它发送了超过 16 MiB 的消息；Luxx 只在重启后再次尝试',
  ],
  [
    "The provider 'A' failed less than a minute ago; gpt-5 of the provider 'B' answers in its place.",
    '',
    '服务商“A”在一分钟内失败过；由服务商“B”的 gpt-5 代为回答。',
  ],
  ["Wrong username or password. The call goes to gpt-5 of the provider 'B'.", '', '用户名或密码错误。改由服务商“B”的 gpt-5 进行调用。'],
  [
    'The model could not summarise the earlier conversation: it does not fit its context window. Its oldest part is left out of what the model reads.',
    '',
    '模型无法总结较早的对话：对话超出了它的上下文窗口。最早的部分不再发送给模型。',
  ],
  ['this room is paused; resume it', 'run_active', '此房间已暂停；请继续它。'],
  [
    'You may use 5,000 tokens a day and have used 4,990; the next model call could take 120 before it answers. The limit resets at midnight UTC; until then a shorter conversation may fit, or ask an administrator to raise limits.tokens_per_day.',
    'tokens_per_day',
    '你每天可以使用 5,000 个词元，已使用 4,990；下一次模型调用在回答之前可能需要 120。上限在 UTC 零点重置；在此之前，较短的对话可能可以继续，或请管理员提高 limits.tokens_per_day。',
  ],
  ['this field is required and must be text of 1 to 300 characters', '', '此项必填，必须是：1 至 300 个字符的文字。'],
  ['must be a whole number from 1 to 4, or null', '', '必须是：1 至 4 的整数，或留空。'],
  ['must be a list of at most 30 items, each text of 1 to 64 characters', '', '必须是：最多 30 项的列表，每项为1 至 64 个字符的文字。'],
  ['May python_eval be run with these arguments?', '', '可以用这些参数运行 python_eval 吗？'],
  [
    'file_read was called 3 times with the same arguments and gave the same result. How is the run to go on?',
    '',
    'file_read 已用相同参数调用 3 次，结果相同。运行应如何继续？',
  ],
  ['no rule matches, and its risk is high', '', '没有匹配的规则，其风险为“高”'],
  ["the user's rule 2 says: ask shell_execute(git *)", '', '用户的第 2 条规则：ask shell_execute(git *)'],
  [
    "it redirects to or from a file (> out.txt), so it may be what the tenant's rule 1 denies: deny shell_execute(rm *)",
    '',
    '它对文件重定向（> out.txt），因此它可能符合：租户的第 1 条规则：deny shell_execute(rm *)',
  ],
  [
    'xargs runs the command that its arguments name, so only a rule for exactly this call, or for all calls, can allow it',
    '',
    'xargs 会运行其参数指定的命令，因此只有正好针对此次调用，或针对所有调用的规则才能允许它',
  ],
  [
    "has ended: a file is missing, or the server has no access to it; name its directory in `reads`, or put it below the server's `workspace`: can't open file 'a'",
    '',
    "已结束：缺少文件，或此服务器无权访问；请在 `reads` 中列出其目录，或将其放入此服务器的 `workspace`：can't open file 'a'",
  ],
  [
    'was not ready within 30 seconds: it opened more than 4,096 files; raise open_files of mcp in tools.limits',
    '',
    '30 秒内没有就绪：它打开的文件超过 4,096 个；请在 tools.limits 中提高 mcp 的 open_files',
  ],
  ['there is no tool named web_serch; GET /tools lists yours', '', '没有名为 web_serch 的工具；请从工具列表中选择。'],
  ['there is no skill named notes; GET /skills lists yours', '', '没有名为 notes 的技能；请从列表中选择。'],
  ["there is no agent named 'Anna'; GET /agents lists yours", '', "没有名为 'Anna' 的智能体；请从列表中选择。"],
  [
    'there is no skill named notes; GET /skills lists yours; unknown field; did you mean goal?',
    'task_invalid',
    '没有名为 notes 的技能；请从列表中选择。没有此项；是否是 goal？',
  ],
  [
    'the document is not valid YAML or JSON in line 3: could not find expected',
    '',
    '文件不是有效的 YAML 或 JSON（第 3 行）：could not find expected',
  ],
  [
    'Run a shell command in the workspace, in a sandbox without network: the workspace can be written, the system only read, nothing else is there. Gives exit code, stdout, stderr and the files that changed. Nothing goes on running afterwards; files stay.',
    '',
    '在工作区的沙箱（无网络）中运行 shell 命令：工作区可写，系统只读，其余不可见。返回退出码、stdout、stderr 和有变化的文件。之后不会有程序继续运行；文件会保留。',
  ],
  [
    "Page 1 has characters that no font of this server has, so pictures and PDF show boxes (交 公 …). Install the extra: pip install 'luxx[artifacts-cjk]'.",
    '',
    "第 1 页有此服务器的字体中没有的字符，图片和 PDF 中会显示为方框（交 公 …）。请安装附加组件：pip install 'luxx[artifacts-cjk]'",
  ],
  [
    'Page 2 has characters that no font of this server has, so pictures and PDF show boxes (🚀). Replace them.',
    '',
    '第 2 页有此服务器的字体中没有的字符，图片和 PDF 中会显示为方框（🚀）。请替换这些字符',
  ],
  ['Only files like this: *.py, *.{ts,vue}, src/**/*.md', '', '只搜索这样的文件：*.py、*.{ts,vue}、src/**/*.md'],
])('%s', (sentence, kind, chinese) => {
  expect(translate(sentence, kind)).toBe(chinese)
})

test('a sentence without a translation of its own gets that of its kind, with what it says', () => {
  expect(translate('The provider answered with $1 and {}.', 'provider_failed')).toBe('服务商出错。（The provider answered with $1 and {}.）')
  expect(translate('something that nobody has translated', 'run_active')).toBe('正在运行；请等待或停止它。')
})

test('names that a person chose stay as they are', () => {
  expect(translate("the username 'text' is taken; choose another")).toBe('用户名“text”已被使用；请另选一个。')
  expect(translate("there is no user 'a number'")).toBe('没有用户“a number”。')
})
