/** Rules for math: `$…$` and `\(…\)` within a line, `$$…$$` and `\[…\]` as a block. KaTeX draws it later. */
import type MarkdownIt from 'markdown-it'

const BLOCKS: [string, string][] = [
  ['$$', '$$'],
  ['\\[', '\\]'],
]

export function addMath(markdown: InstanceType<typeof MarkdownIt>): void {
  markdown.block.ruler.before(
    'fence',
    'math_block',
    (state, startLine, endLine, isSilent) => {
      const start = (state.bMarks[startLine] ?? 0) + (state.tShift[startLine] ?? 0)
      const first = state.src.slice(start, state.eMarks[startLine])
      const pair = BLOCKS.find(([open]) => first.startsWith(open))
      if (!pair || (state.sCount[startLine] ?? 0) - state.blkIndent >= 4) return false
      const [open, close] = pair
      const rest = first.slice(open.length)
      const onSameLine = rest.trimEnd().endsWith(close)
      // `$$x$$ is text`, or `\[x] …`: an inline formula or text.
      if (!onSameLine && rest.includes(close)) return false
      if (isSilent) return true
      const lines = [onSameLine ? rest.trimEnd().slice(0, -close.length) : rest]
      let line = startLine + 1
      // Like a fence, one that is never closed goes on to the end.
      for (let isOpen = !onSameLine; isOpen && line < endLine; line++) {
        const text = state.src.slice((state.bMarks[line] ?? 0) + (state.tShift[line] ?? 0), state.eMarks[line])
        if ((state.sCount[line] ?? 0) < state.blkIndent) break
        isOpen = !text.trimEnd().endsWith(close)
        lines.push(isOpen ? text : text.trimEnd().slice(0, -close.length))
      }
      state.line = line
      const token = state.push('math_block', 'div', 0)
      token.content = lines.join('\n').trim()
      token.map = [startLine, line]
      token.block = true
      return true
    },
    { alt: ['paragraph', 'reference', 'blockquote', 'list'] },
  )

  markdown.inline.ruler.before('escape', 'math_inline', (state, isSilent) => {
    const match = matchInline(state.src, state.pos)
    if (!match) return false
    if (!isSilent) {
      const token = state.push('math_inline', 'span', 0)
      token.content = match.formula
    }
    state.pos += match.length
    return true
  })

  const escape = markdown.utils.escapeHtml
  markdown.renderer.rules.math_inline = (tokens, index) =>
    `<span class="math" data-math="inline">${escape(tokens[index]?.content ?? '')}</span>`
  markdown.renderer.rules.math_block = (tokens, index) =>
    `<div class="math" data-math="block">${escape(tokens[index]?.content ?? '')}</div>`
}

/** `$` counts only next to the formula and not before a digit, so that prices stay text. */
function matchInline(source: string, at: number): { formula: string; length: number } | null {
  const char = source[at]
  if (char === '\\' && source[at + 1] === '(') {
    const end = source.indexOf('\\)', at + 2)
    return end < 0 ? null : { formula: source.slice(at + 2, end), length: end + 2 - at }
  }
  if (char !== '$' || source[at + 1] === '$' || /\s/.test(source[at + 1] ?? ' ')) return null
  for (let end = at + 1; end < source.length && source[end] !== '\n'; end++) {
    if (source[end] === '\\') end++
    else if (source[end] === '$') {
      const isClosing = end > at + 1 && !/\s/.test(source[end - 1] ?? ' ') && !/\d/.test(source[end + 1] ?? '')
      return isClosing ? { formula: source.slice(at + 1, end), length: end + 1 - at } : null
    }
  }
  return null
}
