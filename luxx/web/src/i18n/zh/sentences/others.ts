/** Sentences of the server and of `api/client.ts` that are neither in `documents.ts` nor in `tools.ts`. */

/** As the server writes them, without a capital at the beginning and a full stop at the end. */
export const SENTENCES: Record<string, string> = {
  // The connection and requests
  'the server cannot be reached': '无法连接服务器。',
  'the server answered with status {}': '服务器返回了状态 {1}。',
  "internal server error; see the server's log": '服务器内部错误；请查看服务器日志。',
  'the database does not answer; try again in a moment': '数据库没有响应；请稍后再试。',
  'a referenced object was just changed or deleted; reload and try again': '相关内容刚刚被更改或删除；请刷新后再试。',
  'the request ended early; send it again': '请求提前结束；请重新发送。',
  'the body is too large': '发送的内容太大。',
  'the request is larger than {} MiB; send less': '请求超过 {1} MiB；请减少内容。',
  'the request is not valid: {}{}': '请求无效：{1}{2}',
  'the upload was interrupted; nothing was saved': '上传中断；没有保存任何内容。',
  'another upload is being saved; try again': '另一个上传正在保存；请再试一次。',
  'this server is stopping; send the request again in a moment': '服务器正在停止；请稍后重新发送。',
  'the server stopped before this was done; check the state after it restarts, and try again':
    '服务器在完成之前停止了；请在它重新启动后检查状态，然后再试。',
  'the server has reached its connection limit; try again in a moment': '服务器的连接数已达上限；请稍后再试。',
  'you have {} streams and sockets open, which is the limit; close one and try again': '你已打开 {1} 个连接，达到上限；请关闭一个标签页后再试。',
  'a page of another site may not send this request; open Luxx under its own address': '其他网站的页面不能发送此请求；请用 Luxx 自己的地址打开。',
  'this server does not accept this host name; an operator can add it to server.allowed_hosts':
    '服务器不接受这个主机名；运维人员可以将它加入 server.allowed_hosts。',

  // Links
  'your tenant allows links for its own people only; an administrator can change this': '本租户只允许给自己人的链接；管理员可以更改。',
  'this task has no result yet; share it when it has one': '此任务还没有结果；有结果后再分享。',
  'a temporary chat is deleted, and its links with it; keep the chat first': '临时对话会被删除，它的链接也一起删除；请先保留这个对话。',
  'you have {} links, which is the limit; revoke one that you no longer use': '你已有 {1} 个链接，达到上限；请撤销一个不再使用的。',
  'your snapshots take up the space that they may; revoke some, or share this live': '你的快照已达空间上限；请撤销一些，或以实时方式分享。',
  'the result has more than {} MB; share it live': '结果超过 {1} MB；请以实时方式分享。',
  'it has more than {} messages; share it live': '消息超过 {1} 条；请以实时方式分享。',
  'no link with this id': '没有这个链接。',
  'this link does not exist, or has ended': '此链接不存在或已失效。',
  'too many requests for shared links': '查看分享链接的次数过多。',
  'must be a time to come, before the year {}': '必须是将来的时间，且早于 {1} 年。',

  // A learned pattern
  'a way of working succeeded before for requests like this one: {}. Use it?': '有一种做法在类似请求中取得过成功：{1}。要使用吗？',
  'the model gets it as reference': '模型会将其作为参考',
  'the model works without it': '模型不参考它',

  // The context window of a conversation
  'this conversation has no answer yet, so there is nothing to compress': '此对话还没有回答，没有可压缩的内容。',
  'the next prompt of this conversation takes about {} tokens; a summary of its older part would save too little':
    '此对话的下一次请求约占 {1} 个词元；总结较早的部分节省太少。',
  'the model could not summarise the conversation: {}': '模型无法总结此对话：{+1}',
  'there is not enough that a summary could replace': '可以用摘要代替的内容太少。',

  // Sign-in, accounts and rights
  'wrong username or password': '用户名或密码错误。',
  'too many requests': '请求次数过多。',
  '{}; try again in {} s': '{+1}请在 {2} 秒后再试。',
  'too many attempts to sign in': '登录尝试次数过多。',
  'too many sign-ins at once; try again in a moment': '同时登录的人太多；请稍后再试。',
  "the agent '{}'{} is disabled; enable it, or choose another agent": '智能体“{1}”已停用；请启用它，或另选智能体。',
  'this account is disabled; ask an administrator': '此账户已停用；请联系管理员。',
  'this sign-in has ended; sign in again': '此次登录已结束；请重新登录。',
  'the token has expired; refresh it or sign in again': '登录已过期；请重新登录。',
  'the token is not valid; sign in again': '登录凭证无效；请重新登录。',
  'this refresh token was used before, so its sign-in has been ended; sign in again': '登录凭证曾被使用过，因此此次登录已结束；请重新登录。',
  'your rights have changed; send the request again': '你的权限已更改；请重新发送。',
  'an administrator set this password; choose your own first (POST /auth/password)': '这个密码是管理员设置的；请先设置你自己的密码。',
  'registration is closed on this server; ask an administrator for an account': '此服务器不开放注册；请向管理员申请账户。',
  'the current password is wrong': '当前密码错误。',
  'the new password must differ from the current one': '新密码必须与当前密码不同。',
  'a password needs at least {} characters': '密码至少需要 {1} 个字符。',
  'a password may have at most {} characters': '密码最多 {1} 个字符。',
  'the password must not be the username': '密码不能与用户名相同。',
  "'{}' is the published default; choose another password": '“{1}”是公开的默认密码；请另选一个。',
  'the password was changed elsewhere at the same moment': '密码同时在别处被更改了。',
  "a username has 3 to 64 characters: letters a-z, digits, '.', '_' and '-'": '用户名为 3 至 64 个字符：字母 a-z、数字以及 . _ -',
  "the username '{}' is taken; choose another": '用户名“{1}”已被使用；请另选一个。',
  'this username or e-mail address is taken': '此用户名或电子邮箱已被使用。',
  'this e-mail address is taken': '此电子邮箱已被使用。',
  'this is not an e-mail address; leave it out or write name@example.org': '这不是电子邮箱地址；请留空，或写成 name@example.org。',
  'this is the last active administrator; make another user an administrator first': '这是最后一位有效的管理员；请先将另一位用户设为管理员。',
  'this setup address has expired; restart the server to get a new one': '此设置地址已过期；重新启动服务器可获得新的地址。',
  'this setup address is not valid; copy the whole address that the server printed': '此设置地址无效；请完整复制服务器显示的地址。',
  'this setup address was used already, or the password was set in another way; sign in with that password':
    '此设置地址已被使用，或密码已通过其他方式设置；请用那个密码登录。',
  'this needs permission level {} ({}); yours is {} ({}); an administrator can raise it': '这需要“{+2}”级别，你的级别是“{+4}”；管理员可以提高它。',
  'only an administrator of the default tenant may see or change this': '只有默认租户的管理员可以查看或更改。',
  "there is no user '{}'": '没有用户“{1}”。',
  'another tenant has this name; choose another': '另一个租户已用此名称；请另选一个。',
  'the default tenant cannot be deleted': '默认租户不能删除。',
  'this tenant still has {} user{}; move or delete them first': '此租户还有 {1} 位用户；请先移走或删除他们。',
  'you already have an API key named {}; choose another name or revoke that key': '你已有名为 {1} 的 API 密钥；请另选名称或撤销那个密钥。',
  'you have {} API keys, which is the limit; revoke one that you no longer use': '你有 {1} 个 API 密钥，已达上限；请撤销不再使用的。',
  'must be a time in the future, before the year 10000, or null for a key that does not expire': '必须是将来的时间。',

  // Providers and models
  'connect a model: add a provider with its address and key (POST /providers), or ask an administrator to share one':
    '请先连接模型：添加一个服务商及其地址和密钥，或请管理员共享一个。',
  'in this tenant only administrators connect models; ask one to share it with you': '此租户只有管理员可以连接模型；请管理员与你共享。',
  "provider '{}' has no default model; name a model, or set its default_model": '服务商“{1}”没有默认模型；请选择一个模型，或为它设置默认模型。',
  "{} '{}' is disabled; enable it or choose another": '“{2}”已停用；请启用它或另选一个。',
  "{} '{}' has no key, and its vendor demands one; add the key (api_key) or choose another":
    '“{2}”没有密钥，而其服务商要求密钥；请添加密钥或另选一个。',
  'there is no provider {}': '没有编号为 {1} 的服务商。',
  '{} was deleted or is no longer shared with you; choose another default in your settings (default_provider_id), or a provider for this (provider_id)':
    '你的默认服务商已被删除或不再与你共享；请在设置中另选默认，或在这里另选一个。',
  '{} of this run was deleted or is no longer shared with you; choose another provider, then send the message again':
    '此次运行所用的服务商已被删除或不再与你共享；请另选一个，然后重新发送消息。',
  '{} of {} was deleted or is no longer shared with you; choose another provider for it, or for the request (provider_id), or go back to the default one (null)':
    '所选的服务商已被删除或不再与你共享（{1}）；请另选一个，或使用默认的。',
  '{} is a private address; ask an administrator of this server to allow it (PUT /admin/allowed-hosts, or providers.allow_private in the config)':
    '{1} 是内网地址；请服务器管理员允许它（管理 → 内网地址）。',
  '{} is a private address that no administrator has allowed': '{1} 是内网地址，没有管理员允许过。',
  '{} is a metadata or link-local address, which is always forbidden; use another address': '{1} 是元数据或链路本地地址，始终禁止；请使用其他地址。',
  '{} is a metadata or link-local address, which is always forbidden': '{1} 是元数据或链路本地地址，始终禁止。',
  '{} is a port of this server itself, which no provider may name; use another address': '{1} 是本服务器自己的端口，服务商不能使用；请使用其他地址。',
  'the model {} accepts no images; choose another model or omit them': '模型 {1} 不接受图片；请另选模型或去掉图片。',
  'this server limits spending, and the price of {} is unknown; choose another model, or ask an administrator to add its price to `models` in the configuration (0 if it is free)':
    '此服务器限制花费，而 {1} 的价格未知；请另选模型，或请管理员在配置的 `models` 中填写价格（免费则为 0）。',
  "the provider refused the key {}: {}. Check this provider's key": '服务商拒绝了密钥。请检查这个服务商的密钥。服务商的说明：{2}',
  'the provider refused the request {}: {}': '服务商拒绝了请求：{2}',
  "the provider's account has no credit left, or has reached its spending limit: {}": '服务商的账户余额不足，或已达到花费上限：{1}',
  'the prompt is too long for the model: {}': '内容超出了模型的上下文长度：{1}',
  'a filter of the provider refused this request: {}': '服务商的内容过滤器拒绝了此请求：{1}',
  'the provider limits the rate of requests: {}': '服务商限制了请求频率：{1}',
  "the provider's quota for a longer time is used up: {}": '服务商的长期配额已用完：{1}',
  'the provider is overloaded: {}': '服务商过载：{1}',
  'the provider failed {}: {}': '服务商出错：{2}',
  'the provider cannot be reached: connecting took too long': '无法连接服务商：连接超时。',
  'the provider cannot be reached: {}': '无法连接服务商：{1}',
  'the proxy refused the connection to the provider: {}': '代理拒绝了到服务商的连接：{1}',
  'the provider closed the connection before it responded': '服务商在回答之前关闭了连接。',
  'the provider sent nothing for {} s in the middle of its response': '服务商在回答中途有 {1} 秒没有发送任何内容。',
  'the provider did not start to respond within {} s': '服务商在 {1} 秒内没有开始回答。',
  "the provider's stream ended in the middle of the response": '服务商的回答在中途断开了。',
  "the provider's stream ended before the response began": '服务商的回答在开始之前就断开了。',
  "the provider's base_url is not a usable address": '服务商的地址不可用。',
  '{}; the answer may be incomplete': '{+1}；回答可能不完整。',
  'the provider ended this answer for a reason that Luxx does not know ({})': '服务商以 Luxx 不认识的原因（{1}）结束了回答',
  "the provider's answer is longer than {} characters; it was cut there": '服务商的回答超过 {1} 个字符，在那里被截断。',
  "the provider's response ended in the middle": '服务商的回答在中途断开了。',

  // Runs and limits
  'this message and what belongs to it take about {} tokens, but the context window of {} has {}. Send less at once, offer fewer tools, or choose a model with a larger window':
    '这条消息及相关内容约需 {1} 个词元，而 {2} 的上下文窗口只有 {3} 个。请减少一次发送的内容、提供更少的工具，或选择窗口更大的模型。',
  '{}; the next model call could take {} before it answers. {}, or ask an administrator to raise limits.{}':
    '{+1}；下一次模型调用在回答之前可能需要 {2}。{+3}，或请管理员提高 limits.{4}。',
  'you may use {} a day{} and have used {}': '你每天可以{+2}使用 {+1}，已使用 {3}',
  'this run may use {} and has used {}': '此次运行可以使用 {+1}，已使用 {2}',
  'the limit resets at midnight UTC; until then a shorter conversation may fit': '上限在 UTC 零点重置；在此之前，较短的对话可能可以继续',
  'ask for less at once, continue with another message, or begin a new conversation': '请减少一次的要求、发送另一条消息继续，或开始新的对话',
  'this run has reached its limit of {} seconds; what it produced is kept. Ask for less at once, or ask an administrator to raise limits.seconds_per_run':
    '此次运行已达到 {1} 秒的上限；已生成的内容会保留。请减少一次的要求，或请管理员提高 limits.seconds_per_run。',
  'this run has reached its limit of {} tool calls and answers with the results so far. Send another message to continue, or ask an administrator to raise limits.tool_calls_per_run':
    '此次运行已达到 {1} 次工具调用的上限，将根据现有结果回答。请发送另一条消息继续，或请管理员提高 limits.tool_calls_per_run。',
  'this run has reached its limit of model calls; the next model call asks for the final answer. Send another message to continue, or ask an administrator to raise the limit':
    '此次运行已达到模型调用次数的上限；下一次模型调用将要求给出最终回答。请发送另一条消息继续，或请管理员提高上限。',
  'the reason is not known': '原因未知。',
  'this run was interrupted {} times; it is not started again by itself': '此次运行已中断 {1} 次，不会再自动重新开始。',
  "an internal error stopped this run; see the server's log. What was produced is kept":
    '内部错误使此次运行停止；请查看服务器日志。已生成的内容会保留。',
  'your runs work on as many turns at once as this server allows ({}){}; wait for a run or cancel one':
    '你的运行正在同时进行 {1} 个轮次，已达服务器允许的数量；请等待或停止其中一个运行。',
  'the server is busy with as many runs as it allows; try again in a moment': '服务器的运行数已达上限；请稍后再试。',
  'an answer is being written in this conversation; wait for it or cancel it': '此对话正在生成回答；请等待或停止它。',
  '{} messages wait in this conversation already; delete one or wait': '此对话中已有 {1} 条消息在等待；请删除一条或稍候。',
  'an answer in progress takes no images; queue the message, or attach them to the next one':
    '进行中的回答不接受图片；请让消息排队，或将图片附加到下一条消息。',
  'this conversation has no answer yet, so it has no to-do list; send a message first': '此对话还没有回答，因此没有待办清单；请先发送一条消息。',
  'the title of a to-do item is not empty': '待办的标题不能为空。',
  'the id of a to-do item has no blanks at its ends and no control characters': '待办的 id 两端不能有空格，也不能含控制字符。',
  'two to-do items have the id {}': '两个待办的 id 相同：{1}。',
  'a to-do item has no NUL character': '待办不能含有 NUL 字符。',
  'the to-do list has {} items; at most {} are kept': '待办清单有 {1} 项；最多保留 {2} 项。',
  'the to-do list has {} bytes; at most {} are kept': '待办清单有 {1} 字节；最多保留 {2} 字节。',
  'with what was written meanwhile, {}': '加上期间写入的内容，{+1}',
  'the to-do list is full: {} of the items that were written meanwhile are left out': '待办清单已满：期间写入的 {1} 项被略去。',
  'no message with this id waits here; it may have been sent': '这里没有等待中的此消息；它可能已经发送。',
  'a message was sent to this conversation a moment ago; try again': '刚刚有消息发送到此对话；请再试一次。',
  'a run of this conversation is still stopping; try again': '此对话的运行正在停止；请再试一次。',
  'the run has ended, so this question no longer needs an answer': '运行已结束，这个问题不再需要回答。',
  'this question has been answered already': '这个问题已有回答。',
  "always adds a rule of the run's owner, so only the owner can answer it; answer once or reject":
    '“始终”会为运行的所有者添加规则，因此只有所有者可以这样回答；请选择“一次”或“拒绝”。',
  'this run has already ended: {}': '此次运行已经结束。',
  'this run is not paused: it is {}': '此次运行没有暂停。',
  'the log of this run was deleted: runs.retention_days have passed, or it was a call that stores nothing; its status is still available':
    '此次运行的日志已删除：超过了保留期限，或本来就不保存；它的状态仍可查看。',
  'the model declined to answer this, and gave no reason': '模型拒绝回答，并且没有给出原因。',
  'a content filter of the provider withheld the answer, and gave no reason': '服务商的内容过滤器拦截了回答，并且没有给出原因。',
  'the model reached its limit of tokens before it wrote any text. Raise max_tokens, or ask for less':
    '模型在写出文字之前就达到了词元上限。请提高最大词元数，或减少要求。',
  'the model could not summarise the earlier conversation: {}. Its oldest part is left out of what the model reads':
    '模型无法总结较早的对话：{+1}最早的部分不再发送给模型。',
  'the judge could not decide: {}': '评判者无法判断：{+1}',
  'its answer is not the JSON that was asked for': '它的回答不是所要求的 JSON。',
  'it did not answer within {} seconds': '它在 {1} 秒内没有回答。',
  'the call of {} failed': '{1} 的调用失败了。',
  '{} ended with exit code {}': '{1} 以退出码 {2} 结束。',
  'these files do not exist: {}': '这些文件不存在：{1}。',
  'it does not fit its context window': '对话超出了它的上下文窗口。',
  'it wrote none that is short enough': '它没有写出足够短的总结。',
  'the context window of the model was full before it wrote any text. Send less, or begin a new conversation':
    '模型在写出文字之前，上下文窗口就已满。请减少内容，或开始新的对话。',
  'the model repeated itself before it wrote any text, so its answer was ended': '模型在写出文字之前不断重复自己，回答已结束。',
  'the model ended its answer without any text': '模型没有写出任何文字就结束了回答。',
  'the server stopped while the model was being called': '服务器在调用模型时停止了。',
  'what the interrupted model call cost is not known': '被中断的模型调用花费多少，无从得知。',
  "{} The call goes to {} of the provider '{}'": '{+1}改由服务商“{3}”的 {2} 进行调用。',
  "the provider '{}' failed less than a minute ago; {} of the provider '{}' answers in its place":
    '服务商“{1}”在一分钟内失败过；由服务商“{3}”的 {2} 代为回答。',
  '{} The call is made again without the oldest messages': '{+1}将去掉最早的消息后重新调用。',
  'the agent of this run was deleted or is no longer shared with you, so its permission rules are gone too; choose another agent, then send the message again':
    '此次运行的智能体已被删除或不再与你共享，它的权限规则也随之失效；请另选智能体，然后重新发送消息。',

  // Conversations, files and attachments
  'no conversation with this id': '没有这个对话。',
  'no message with this id': '没有这条消息。',
  'no project with this id': '没有这个项目。',
  'no file with this id': '没有这个文件。',
  'no run with this id': '没有这个运行。',
  'a title needs at least one visible character': '标题至少需要一个可见字符。',
  'only a new conversation can be temporary': '只有新对话才能成为临时对话。',
  'nothing of a temporary chat is remembered; keep the chat first': '临时对话的内容不会被记住；请先保留这个对话。',
  'with {} your conversations would take up more than {} MiB, the limit of this server for each user (files.quota_mb)':
    '这样一来，你的对话会占用超过 {2} MiB，即此服务器对每位用户的上限。',
  'your messages and the logs of your runs would use {} MiB; the limit is {} MiB (limits.storage_mb_per_user); delete conversations and rooms that you no longer need':
    '你的消息和运行日志将占用 {1} MiB，上限为 {2} MiB；请删除不再需要的对话和房间。',
  'this upload needs {} MiB, but only {} of your {} MiB are free; delete files that you no longer need':
    '此次上传需要 {1} MiB，而你的 {3} MiB 中只剩 {2} MiB；请删除不再需要的文件。',
  '{} cannot be attached: it is neither text in UTF-8, nor a PDF, a file of Word, PowerPoint or Excel, an EPUB or ODS file, nor a PNG, JPEG, GIF or WebP image':
    '无法附加 {1}：它不是 UTF-8 文本、PDF、Word、PowerPoint、Excel、EPUB 或 ODS 文件，也不是 PNG、JPEG、GIF 或 WebP 图片。',
  '{} is larger than {} MB, the limit for this type of file': '{1} 超过 {2} MB，即此类文件的上限。',
  '{} has more than {} million pixels, the limit for an image; attach a smaller copy': '{1} 的像素数超过图片的上限（{2} 百万）；请附加较小的副本。',
  '{} is larger than {} MiB, the limit for a document': '{1} 超过 {2} MiB，即文档的上限。',
  '{} contains no text; its pages are images': '{1} 不含文字；它的页面都是图片。',
  '{} contains no text': '{1} 不含文字。',
  '{} is encrypted; use a copy without a password': '{1} 已加密；请使用没有密码的副本。',
  '{} has macros; use a copy without macros': '{1} 含有宏；请使用不含宏的副本。',
  '{} is not opened: unpacked it has {}': '没有打开 {1}：解压后的内容过大。',
  '{} is not what its name says: it is {}': '{1} 的内容与名称不符。',
  '{} is {}; what can be read is {}': '无法读取 {1} 这种类型的文件；可读取：{3}。',
  '{} takes too long to be read': '读取 {1} 花费的时间太长。',
  '{} has too many pages; use a part of it': '{1} 的页数太多；请只使用一部分。',
  '{} has too much text to be read; use a part of it': '{1} 的文字太多；请只使用一部分。',
  '{} is damaged or not a PDF': '{1} 已损坏或不是 PDF。',
  '{} is damaged: {}': '{1} 已损坏。',
  '{} is damaged': '{1} 已损坏。',
  '{} files named {} already exist; rename it': '名为 {2} 的文件已有 {1} 个；请重命名。',
  "you already have a prompt named '{}'; choose another name": '你已有名为“{1}”的提示词；请另选名称。',
  'you have {} prompts, which is the limit; delete one that you no longer use': '你有 {1} 个提示词，已达上限；请删除不再使用的。',
  "the project '{}', whose permission rules applied to this conversation, was deleted; move it to another project (project_id), or to none (null)":
    '项目“{1}”已被删除，它的权限规则曾适用于此对话；请将对话移到其他项目，或移出项目。',
  "the project '{}', whose permission rules applied to this task, was deleted; move it to another project (project_id), or to none (null)":
    '项目“{1}”已被删除，它的权限规则曾适用于此任务；请将任务移到其他项目，或移出项目。',

  // Agents and tools
  'there is no agent {}': '没有编号为 {1} 的智能体。',
  '{} of {} was deleted or is no longer shared with you; choose another agent for it (agent_id), or none (null)':
    '所选的智能体已被删除或不再与你共享（{1}）；请另选一个，或不用智能体。',
  "the default agent '{}' of your tenant was deleted or is no longer shared; choose an agent (agent_id; null for none), or ask an administrator to choose another default":
    '租户的默认智能体“{1}”已被删除或不再共享；请选择一个智能体，或请管理员另选默认。',
  "the agent '{}' comes with Luxx; export it and import it to have one of your own": '智能体“{1}”是 Luxx 自带的；导出后再导入，就有你自己的一份。',
  "the agent '{}' is shared with the tenant; only administrators change it": '智能体“{1}”与租户共享；只有管理员可以更改。',
  'only an administrator may share an agent with the tenant': '只有管理员可以与租户共享智能体。',
  'no tool named {} at your permission level; GET /tools lists yours': '以你的权限级别，没有名为 {1} 的工具。',
  'this composition is not valid: {}': '此组合工具无效：{1}',
  'you already have a composition named {}': '你已有名为 {1} 的组合工具。',
  'a list holds at most {} rules; remove some': '一个列表最多 {1} 条规则；请删除一些。',
  '{} of {} has changed again since you have seen it; read GET /mcp/changes, and approve with the hash that it returns now':
    '{2} 的 {1} 在你查看之后又有更改；请刷新后再批准。',

  // The roles of the agents that come with Luxx
  'general assistant': '通用助手',
  'explorer who finds out how a workspace is built': '探索者，弄清工作区的构成',
  'researcher who reads sources and reports with citations': '研究员，阅读来源并附引用地报告',
  'programmer who carries out one programming task': '程序员，完成一项编程任务',
  'reviewer who finds mistakes in changes and texts': '审查者，找出改动和文本中的错误',
  'operator who runs commands and looks after services': '运维员，运行命令并照看服务',
  'planner who breaks a goal into steps and carries them out': '规划者，将目标拆分为步骤并执行',
  "programmer who works in the user's workspace": '程序员，在用户的工作区中工作',

  // Rooms
  'no room with this id': '没有这个房间。',
  'this room is running; stop it first': '此房间正在运行；请先停止它。',
  'this room {}': '此房间{+1}。',
  'is paused; resume it': '已暂停；请继续它',
  'runs already': '已经在运行',
  'is paused; resume or end it first': '已暂停；请先继续或结束它',
  'this room does not run: it is {}': '此房间没有在运行。',
  'this room has not been started': '此房间尚未开始。',
  "this room's run has just ended": '此房间的运行刚刚结束。',
  'this room has no seats; add one first': '此房间没有席位；请先添加。',
  'this room has no seat with this id': '此房间没有这个席位。',
  'this seat is muted; unmute it first': '此席位已静音；请先取消静音。',
  'no seat of this room can speak: it has none, or all are muted. Add or unmute a seat, then resume':
    '此房间没有可以发言的席位：没有席位，或全部已静音。请添加席位或取消静音，然后继续。',
  'another seat of this room has this name; letter case does not count; give it another name':
    '此房间的另一个席位已用此名称（不分大小写）；请另选名称。',
  'a room has at most {} seats; remove one first': '一个房间最多 {1} 个席位；请先移除一个。',
  'a room has at most {} members; remove one first': '一个房间最多 {1} 位成员；请先移除一位。',
  'a seat without an agent (agent_id) needs a name': '没有智能体的席位需要名称。',
  "the stop of this room names the seat '{}'; change the stop first": '此房间的停止条件提到席位“{1}”；请先更改停止条件。',
  'the policy {} of this room chooses who speaks; only manual lets a person choose':
    '此房间的发言策略（{1}）自行决定由谁发言；只有手动策略可以由人选择。',
  'your tenant has no active user with this id or name': '你的租户没有此用户名的有效用户。',
  "'{}' is a member already; change the right with PUT": '“{1}”已是成员；请更改其权限。',
  'you own this room and have every right': '你是此房间的所有者，拥有全部权限。',
  '{} failed {} times in a row and is muted now. Unmute it to let it speak again': '{1} 连续失败 {2} 次，已被静音。取消静音后可再次发言。',
  'the model that chooses who speaks next cannot be used: {}': '选择发言者的模型无法使用：{+1}',
  'the model that chooses who speaks next {}. The next seat in order speaks': '选择发言者的模型没有给出可以发言的席位。由顺序中的下一个席位发言。',

  // Tasks
  'no task with this id': '没有这个任务。',
  'this task has no step with this id': '此任务没有这个步骤。',
  'this task {}': '此任务{+1}。',
  'is paused; resume it first': '已暂停；请先继续它',
  'a run of this task is in progress; cancel it or wait until it has ended': '此任务正在运行；请停止它，或等它结束。',
  "this task's run has just ended": '此任务的运行刚刚结束。',
  'this task has not been {}': '此任务尚未运行。',
  'no step of this task is pending; retry a failed step, or change the graph': '此任务没有待运行的步骤；请重试失败的步骤，或更改步骤图。',
  'step {} failed; retry, or skip what is not needed': '步骤 {1} 失败；请重试，或跳过不需要的步骤。',
  'steps {} failed; retry, or skip what is not needed': '步骤 {1} 失败；请重试，或跳过不需要的步骤。',
  'only a failed or skipped step is retried; this one is {}': '只有失败或跳过的步骤可以重试。',
  'this step has ended: it is {}': '此步骤已经结束。',
  'this step needs {}, which {}; retry that one first': '此步骤需要 {1}；请先重试那一步。',
  'other steps depend on this one: {}; change their depends_on first, or replace the graph': '其他步骤依赖此步骤：{1}；请先更改它们的依赖。',
  'these steps wait for each other: {}': '这些步骤互相等待：{1}',
  'the step {} depends on itself': '步骤 {1} 依赖自己。',
  'this step requires tools that it cannot have: {}; change its required_tools, its agent or its model':
    '此步骤需要的工具无法使用：{1}；请更改所需工具、智能体或模型。',
  'the model, or a filter of its provider, stopped the answer of this step': '模型或其服务的过滤器中止了此步骤的回答。',
  'the model repeated itself, so this step was ended': '模型不断重复自己，此步骤已结束。',
  'the model ended this step without any text, so it has no result': '模型没有写出任何文字就结束了此步骤，因此没有结果。',
  'the final result was cut at the limit of tokens of its model': '最终结果在模型的词元上限处被截断。',
  'the final result could not be written: {}': '无法写出最终结果：{+1}',
  'the plan is not valid: {}': '计划无效：{+1}',
  'the plan has no steps': '计划没有步骤。',
  'the model drew no valid plan in {} attempts: {}. Use another model, or add the steps yourself':
    '模型尝试 {1} 次都没有给出有效的计划：{+2}。请换用其他模型，或自己添加步骤。',
  'you must {} for this; yours is the right to {}; its owner can change it': '你在此房间的权限不够；所有者可以更改。',

  // Fields of forms
  'this field is required and must be {}': '此项必填，必须是：{+1}。',
  'must be {}': '必须是：{+1}。',
  'this field appears twice; send it once': '此项出现了两次。',
  'no entity with this id': '没有此编号的实体',
  'an entity cannot be merged into itself': '实体不能合并到自身',
  'both entities must belong to the same scope': '两个实体必须属于同一范围',
  '{} was merged into another; split it off first': '其中一个实体已合并到另一个实体；请先拆分',
  'the entity was not merged into this one': '该实体没有合并到这一个',
  'an entity of this change was deleted or merged since then': '此更改涉及的实体之后已被删除或合并',
  'too many graph queries run at the same time; try again': '同时运行的图谱查询太多；请重试',
}
