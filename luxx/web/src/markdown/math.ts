/**
 * Rules for math: `$…$` and `\(…\)` within a line; `$$…$$` and `\[…\]` as a block, or displayed within a paragraph.
 * KaTeX draws it later.
 */
import type MarkdownIt from 'markdown-it'

const BLOCKS: [string, string][] = [
  ['$$', '$$'],
  ['\\[', '\\]'],
]

/** After `\[`: an escaped bracket, `\[x] text` or `\[1\]`, not the beginning of a formula. */
const ESCAPED_BRACKET = /^[^[\\]*\]|^\d*\\\]/

/** How many characters are searched for the end of a formula with text around it. */
const LONGEST_DISPLAYED = 5000
const LONGEST_INLINE = 1000

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
      // `$$x$$ is text`: a formula within a paragraph.
      if (!onSameLine && rest.includes(close)) return false
      if (open === '\\[' && ESCAPED_BRACKET.test(rest)) return false
      if (isSilent) return true
      const lines = [onSameLine ? rest.trimEnd().slice(0, -close.length) : rest]
      let line = startLine + 1
      let isShared = false
      // Like a fence, one that is never closed goes on to the end.
      for (let isOpen = !onSameLine; isOpen && line < endLine; line++) {
        const begin = (state.bMarks[line] ?? 0) + (state.tShift[line] ?? 0)
        const text = state.src.slice(begin, state.eMarks[line])
        if ((state.sCount[line] ?? 0) < state.blkIndent) break
        const found = text.indexOf(close)
        isOpen = found < 0
        lines.push(isOpen ? text : text.slice(0, found))
        const following = isOpen ? '' : text.slice(found + close.length).trimStart()
        if (!following) continue
        // The text after the formula is parsed as a line of its own.
        state.bMarks[line] = (state.eMarks[line] ?? 0) - following.length
        state.tShift[line] = 0
        state.sCount[line] = state.blkIndent
        isShared = true
        break
      }
      state.line = line
      const token = state.push('math_block', 'div', 0)
      token.content = lines.join('\n').trim()
      token.map = [startLine, isShared ? line + 1 : line]
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
      token.content = match.formula.trim()
      token.meta = { isDisplayed: match.isDisplayed }
    }
    state.pos += match.length
    return true
  })

  const escape = markdown.utils.escapeHtml
  markdown.renderer.rules.math_inline = (tokens, index) =>
    `<span class="math" data-math="${tokens[index]?.meta?.isDisplayed ? 'block' : 'inline'}">${escape(tokens[index]?.content ?? '')}</span>`
  markdown.renderer.rules.math_block = (tokens, index) => `<div class="math" data-math="block">${escape(tokens[index]?.content ?? '')}</div>`
}

interface InlineMath {
  formula: string
  length: number
  /** On a line of its own. */
  isDisplayed: boolean
}

const INLINES: [string, string, boolean][] = [
  ['\\(', '\\)', false],
  ['\\[', '\\]', true],
  ['$$', '$$', true],
]

function matchInline(source: string, at: number): InlineMath | null {
  for (const [open, close, isDisplayed] of INLINES) {
    if (!source.startsWith(open, at)) continue
    const searched = source.slice(at, at + LONGEST_DISPLAYED)
    const end = searched.indexOf(close, open.length)
    const formula = searched.slice(open.length, end)
    if (end < 0 || !formula.trim() || (open === '\\[' && ESCAPED_BRACKET.test(searched.slice(2)))) return null
    // `$$` is also the number of a process.
    if (open === '$$' && (PROSE.test(formula) || formula.includes('`'))) return null
    return { formula, length: end + close.length, isDisplayed }
  }
  return source[at] === '$' && source[at + 1] !== '$' ? matchDollars(source, at) : null
}

/** `$…$`, where the signs are not those of prices, shells or file names. */
function matchDollars(source: string, at: number): InlineMath | null {
  if (/[A-Za-z0-9\\$]/.test(source[at - 1] ?? '') || /\s/.test(source[at + 1] ?? ' ')) return null
  const last = Math.min(source.length, at + LONGEST_INLINE)
  for (let end = at + 1; end < last && source[end] !== '\n'; end++) {
    if (source[end] === '\\') end++
    else if (source[end] === '$') {
      const formula = source.slice(at + 1, end)
      return isFormula(formula, source.slice(end + 1, end + 8)) ? { formula, length: end + 1 - at, isDisplayed: false } : null
    }
  }
  return null
}

/** Between a number and the second sign: words of a sentence, so that both are prices. */
const PRICES =
  /^\d[\d.,]*(?:[kKmMbB]|\s*[万亿千])?[.,;:]?(?:\s+(?:[^\\^_={}]*\s)?\p{L}{2,}|\s*[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Hangul}])/u
/** Several words and no sign of a formula. */
const PROSE = /^[^\\^_=+*/(){}<>|\d-]*[A-Za-z]{2,}\s[^\\^_=+*/(){}<>|\d-]*[A-Za-z]{2,}[^\\^_=+*/(){}<>|\d-]*$/
/** After the second sign: the name of a variable or a number. An ordinal is none: `$n$th`. */
const NAME_AFTER = /^(?!(?:th|st|nd|rd|s|ths)(?![A-Za-z0-9_]))[A-Za-z0-9_{]/

function isFormula(formula: string, after: string): boolean {
  if (!formula || /[\s/:"&;[]$|`/.test(formula)) return false
  return !NAME_AFTER.test(after) && !PRICES.test(formula) && !PROSE.test(formula)
}
