/** Sentences of the server about artifacts: what is wrong with a page or a file, and why a change is refused. */
export const SENTENCES_OF_ARTIFACTS: Record<string, string> = {
  // Files and pictures
  'a text of page {} needs {} % more space than there is. Shorten it': '第 {1} 页有一段文字需要比现有空间多 {2}% 的空间。请缩短它',
  'page {} has characters that no font of this server has, so pictures and PDF show boxes ({}). {}':
    '第 {1} 页有此服务器的字体中没有的字符，图片和 PDF 中会显示为方框（{2}）。{+3}',
  'replace them': '请替换这些字符',
  "install the extra: pip install 'luxx[artifacts-cjk]'": "请安装附加组件：pip install 'luxx[artifacts-cjk]'",
  'page {} asks for the layout {}, which does not exist ({}) or does not suit its content; the layout is {}':
    '第 {1} 页要求版式 {2}，但没有这种版式（{3}），或它不适合内容；现在的版式是 {4}',
  'the {} of page {} needs {} % more space than there is, at the smallest size of {} points. Shorten it, or divide it into several pages':
    '以最小字号 {4} 磅，第 {2} 页的{+1}仍需要比现有空间多 {3}% 的空间。请缩短它，或拆分为几页',
  'page {} is empty. Write something on it, or delete it': '第 {1} 页是空的。请写入内容，或将其删除',
  '{} characters of page {} are not in the file': '第 {2} 页有 {1} 个字符不在文件中',
  'the file has {} mistakes that PowerPoint may repair': '文件有 {1} 处错误，PowerPoint 可能会修复它们',
  'the file has mistakes that Word may repair': '文件有错误，Word 可能会修复它们',
  'the file has {} slides, and the source has {} pages': '文件有 {1} 张幻灯片，而源文本有 {2} 页',
  'the file has {} sheets, and the source has {}': '文件有 {1} 个工作表，而源文本有 {2} 个',
  'names occur twice in the file: {}': '文件中有重复的名称：{1}',
  'the headings of the file are not those of the source': '文件的标题与源文本不同',
  'the picture {} of page {} {}': '第 {2} 页的图片 {1} {+3}',
  'the picture {} {}': '图片 {1} {+2}',
  'is no readable PNG, JPEG or GIF': '不是可读取的 PNG、JPEG 或 GIF',
  'slide {} has {} characters, and {} are the most that one can have. Shorten it, or divide it':
    '第 {1} 张幻灯片有 {2} 个字符，最多为 {3} 个。请缩短或拆分它',
  'the chart cannot be drawn: {}': '无法绘制此图表：{+1}',
  'rendering this source takes {}. Shorten it, or divide it into several artifacts': '生成此文件需要{+1}。请缩短它，或拆分为多个作品',
  'more than the {} seconds that it may take': '超过允许的 {1} 秒',
  'more than the {} MB of memory that it may take': '超过允许的 {1} MB 内存',
  'a file of more than {} MB': '超过 {1} MB 的文件',
  'rendering this source takes more memory than it may take. Shorten it': '生成此文件需要的内存超过允许的量。请缩短它',
  'the renderer failed on this source, or needs more memory than it may take ({}). Shorten or simplify the page that changed last':
    '生成文件失败，或需要的内存超过允许的量（{1}）。请缩短或简化最后更改的那一页',
  "this server makes no Office files, PDF and pictures, because it lacks the extra 'artifacts': pip install 'luxx[artifacts]'":
    "此服务器不能生成 Office 文件、PDF 和图片，因为没有安装附加组件 artifacts：pip install 'luxx[artifacts]'",
  'the server is making too many files at the moment; try again': '服务器正在生成的文件太多；请稍后重试',
  '{} in row {}, column {} is no {}; it is a text': '第 {2} 行第 {3} 列的 {1} 不是 {4}；它作为文本写入',
  'sheet {} is no sheet: {}': '工作表 {1} 无效：{+2}',
  'sheet {} has {} rows, and the file has the first {}': '工作表 {1} 有 {2} 行，文件只含前 {3} 行',
  'the formula {} in row {} is written as text: {}': '第 {2} 行的公式 {1} 作为文本写入：{+3}',
  'a formula begins with = and has at most {} characters': '公式以 = 开头，最多 {1} 个字符',
  'a formula may not name other files or programs': '公式不能引用其他文件或程序',
  'the function {} is not allowed in a formula': '公式中不允许使用函数 {1}',
  'artifacts of this type have no pictures of pages': '此类型的作品没有页面图片',
  'the file has no page {}': '文件没有第 {1} 页',
  'an artifact of the type {} is downloaded as {}': '类型为 {1} 的作品可下载为 {2}',
  'was not found': '未找到',
  'text of the cards': '卡片文字',
  // Sources
  'the content is empty': '内容为空',
  'the content has no page with text': '内容中没有带文字的页面',
  'a program needs at least one file': '程序至少需要一个文件',
  'only an artifact of the type code has files': '只有类型为 code 的作品才有文件',
  'an artifact has at most {} pages (artifacts.max_pages); this one would have {}; leave some out, or make several artifacts':
    '一个作品最多 {1} 页（artifacts.max_pages）；此作品会有 {2} 页；请减少页数，或创建多个作品',
  'the source of an artifact has at most {} KB (artifacts.max_source_kb); this one has {}':
    '作品的源文本最多 {1} KB（artifacts.max_source_kb）；此作品有 {2} KB',
  'the path {} {}': '路径 {1} {+2}',
  'the path {} is below another file': '路径 {1} 位于另一个文件之下',
  'must be relative, such as src/main.py, without empty parts, . and .': '必须是相对路径，例如 src/main.py，不含空的部分、. 和 ..',
  'has a character that is not shown': '含有不可见的字符',
  'has a part that not every system can store: a device name, or one that ends in a dot or space':
    '有一部分并非所有系统都能保存：设备名，或以句点或空格结尾',
  'is in the list twice (upper and lower case are the same on some systems)': '在列表中出现了两次（有些系统不区分大小写）',
  'the content is no list of files {"files": [{"path", "content"}]}: {}': '内容不是文件列表 {"files": [{"path", "content"}]}：{1}',
  'a chart is JSON, and this is none: {}': '图表是 JSON，而这不是：{1}',
  'a chart is a JSON object with type, labels and series': '图表是含有 type、labels 和 series 的 JSON 对象',
  'a chart needs series: [{name, values}]': '图表需要 series: [{name, values}]',
  'each series of a chart is {name, values}': '图表的每个系列是 {name, values}',
  'each series of a chart needs values, a list of numbers': '图表的每个系列需要 values，即一列数字',
  'values of a chart are numbers, and {} is none': '图表的值是数字，而 {1} 不是',
  'titles, names and labels of a chart are texts': '图表的标题、名称和标签是文字',
  'a chart has at most {} series, and this one has {}': '图表最多 {1} 个系列，而此图表有 {2} 个',
  'a chart has at most {} labels': '图表最多 {1} 个标签',
  'a series has {} values, and there are {} labels': '一个系列有 {1} 个值，而标签有 {2} 个',
  '{} is no type of a chart; there are {}': '{1} 不是图表类型；可用的有 {2}',
  'a {} has one series, and this one has {}': '{1} 图表只有一个系列，而此图表有 {2} 个',
  // Changes
  'no artifact with this id': '没有此 ID 的作品',
  'this artifact has no version {}; older ones may be deleted': '此作品没有版本 {1}；较早的版本可能已被删除',
  'there is no page {}: the pages are 1 to {}': '没有第 {1} 页：页面为 1 至 {2}',
  'an artifact has at least one page; delete the artifact instead': '作品至少有一页；请改为删除整个作品',
  'you may read this artifact; you must {} for this': '你可以查看此作品；要执行此操作，你必须{+1}',
  'have the right to speak in its room': '有权在它的讨论室中发言',
  'the artifact was changed meanwhile: version {} is the newest; compare both texts and save again with it as base_version':
    '作品已在此期间被更改：最新的是版本 {1}；请比较两份文本，并以它为 base_version 再次保存',
  'a page of this artifact is being written anew already; wait for that run or cancel it': '此作品的一页已在重新撰写；请等待那次运行结束或将其取消',
  'the page was changed or deleted while it was written anew, and version {} stays as it is; the answer is in this run, and can be taken over by hand':
    '重新撰写期间这一页被更改或删除，因此版本 {1} 保持不变；模型的回答保存在此次运行中，可以手动采用',
  "the page was not changed, because the model's answer is not whole: {}": '这一页没有更改，因为模型的回答不完整：{+1}',
  'the answer of the model is the page as it is, so no version was made': '模型的回答与现有页面相同，因此没有产生新版本',
  // Citations
  '[S{}] is no page that was read. Cite only the numbers that web_fetch and batch_fetch gave; a page that a search only listed has none':
    '[S{1}] 不是读取过的网页。只能引用 web_fetch 和 batch_fetch 给出的编号；仅在搜索结果中列出的网页没有编号',
  'page S{} does not have the words {}. Quote them exactly, or cite the page without the words':
    '网页 S{1} 中没有 {2} 这些文字。请准确引用，或只引用网页而不引文字',
  'whether page S{} has the words {} cannot be checked any more, because its text was deleted. Read the page again, or cite it without the words':
    '无法再核对网页 S{1} 中是否有 {2} 这些文字，因为其文本已被删除。请重新读取网页，或只引用网页而不引文字',
  'page {}: {}': '第 {1} 页：{+2}',
}
