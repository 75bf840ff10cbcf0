/** Markdown as safe HTML: CommonMark with tables, check boxes, math and citations; raw HTML is shown as text. */
import DOMPurify from 'dompurify'
import MarkdownIt, { type Env } from 'markdown-it'
import cjkFriendly from 'markdown-it-cjk-friendly'
import { widthOf } from '@/i18n/format'
import { addMath } from './math'

/** `citations`: the numbers of the message's sources; only these become links. */
export type RenderEnv = Env & { citations: ReadonlySet<number> }

export const markdown = new MarkdownIt({ html: false, linkify: true, breaks: false, typographer: false })
markdown.linkify.set({ fuzzyEmail: false, fuzzyLink: false })

const SAFE_LINK = /^(https?:|mailto:)/i
const SAFE_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/i

markdown.validateLink = (url) => SAFE_LINK.test(url) || SAFE_IMAGE.test(url)
// `**重点：**后文` is bold, although there is no space between the sign and the next word.
markdown.use(cjkFriendly)
addMath(markdown)

// `- [x] done`: a check box that nobody can change, with the words beside it as its name.
markdown.core.ruler.after('inline', 'check_box', (state) => {
  state.tokens.forEach((token, index) => {
    const [item, paragraph] = [state.tokens[index - 2], state.tokens[index - 1]]
    const first = token.children?.[0]
    const mark = first?.type === 'text' ? /^\[([ xX])\]\s+/.exec(first.content) : null
    if (!first || !mark || token.type !== 'inline' || paragraph?.type !== 'paragraph_open' || item?.type !== 'list_item_open') return
    first.content = first.content.slice(mark[0].length)
    const name = (token.children ?? []).map((child) => child.content).join('')
    if (!name.trim()) {
      first.content = mark[0]
      return
    }
    item.attrJoin('class', 'check-item')
    const box = new state.Token('check_box', 'span', 0)
    box.meta = { isChecked: mark[1] !== ' ', name }
    token.children?.unshift(box)
  })
})
markdown.renderer.rules.check_box = (tokens, index) => {
  const { isChecked, name } = tokens[index]?.meta as { isChecked: boolean; name: string }
  return `<span class="check-box" role="checkbox" aria-checked="${isChecked}" aria-disabled="true" aria-label="${escape(name)}"></span>`
}

// `[2]` is the second source of the message, where it has one.
markdown.inline.ruler.after('link', 'citation', (state, isSilent) => {
  const match = /^\[(\d{1,3})\](?![([:])/.exec(state.src.slice(state.pos, state.pos + 6))
  if (!match || !(state.env as unknown as RenderEnv).citations?.has(Number(match[1]))) return false
  if (!isSilent) {
    const token = state.push('citation', '', 0)
    token.content = match[1] ?? ''
  }
  state.pos += match[0].length
  return true
})
markdown.renderer.rules.citation = (tokens, index) => {
  const number = escape(tokens[index]?.content ?? '')
  return `<button type="button" class="citation" data-citation="${number}">${number}</button>`
}

markdown.renderer.rules.image = (tokens, index) => {
  const token = tokens[index]
  const source = String(token?.attrGet('src') ?? '')
  const alt = escape(token?.content ?? '')
  if (SAFE_IMAGE.test(source)) return `<img src="${escape(source)}" alt="${alt}">`
  // A remote image would tell its server who reads this; it is offered as a link.
  return `<a class="remote-image" href="${escape(source)}">${alt || escape(source)}</a>`
}

const codeBlock = (code: string, language: string): string =>
  `<div class="code-block"><div class="code-head"><span>${escape(language)}</span>` +
  '<button type="button" class="copy-code" data-copy></button></div>' +
  `<pre tabindex="0"><code data-language="${escape(language)}">${escape(code)}</code></pre></div>`

markdown.renderer.rules.fence = (tokens, index) => {
  const token = tokens[index]
  return codeBlock(token?.content ?? '', /^\S*/.exec(token?.info.trim() ?? '')?.[0] ?? '')
}
markdown.renderer.rules.code_block = (tokens, index) => codeBlock(tokens[index]?.content ?? '', '')
markdown.renderer.rules.table_open = () => '<div class="table-frame" tabindex="0"><table>'
markdown.renderer.rules.table_close = () => '</table></div>'
for (const cell of ['th_open', 'td_open']) {
  markdown.renderer.rules[cell] = (tokens, index, options, _env, self) => {
    const token = tokens[index]
    const alignment = /text-align:(\w+)/.exec(String(token?.attrGet('style') ?? ''))?.[1]
    const words = (tokens[index + 1]?.children ?? []).map((child) => child.content).join(' ')
    const classes = [alignment ? `align-${alignment}` : '', `least-${leastCharacters(words)}`].filter(Boolean)
    if (token) token.attrs = [['class', classes.join(' ')]]
    return self.renderToken(tokens, index, options)
  }
}

/** The width that a cell needs so that its words do not stand one in a line: steps of 4 characters, up to 24. */
function leastCharacters(words: string): number {
  return Math.min(24, Math.ceil(widthOf(words) / 4) * 4)
}

const TAGS = [
  ...['p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'strong', 'em', 's', 'code', 'pre', 'blockquote'],
  ...['ul', 'ol', 'li', 'a', 'img', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'div', 'span', 'button'],
]
/** Attributes whose values are no addresses. */
const PLAIN_ATTRIBUTES = [
  ...['title', 'class', 'start', 'alt', 'type', 'tabindex', 'target', 'rel', 'role'],
  ...['aria-checked', 'aria-disabled', 'aria-label'],
  ...['data-language', 'data-copy', 'data-citation', 'data-math'],
]

const purifier = DOMPurify(window)
purifier.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName === 'A') {
    if (!SAFE_LINK.test(node.getAttribute('href') ?? '')) node.removeAttribute('href')
    node.setAttribute('target', '_blank')
    node.setAttribute('rel', 'noopener noreferrer')
  }
  if (node.tagName === 'IMG' && !SAFE_IMAGE.test(node.getAttribute('src') ?? '')) node.remove()
})

export function sanitize(html: string): string {
  return purifier.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ['href', 'src', ...PLAIN_ATTRIBUTES],
    ADD_URI_SAFE_ATTR: PLAIN_ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/)/i,
  })
}

/** The whole text at once. */
export function renderMarkdown(source: string, citations: ReadonlySet<number> = new Set()): string {
  const env: RenderEnv = { citations }
  return sanitize(markdown.render(source, env))
}

function escape(text: string): string {
  return markdown.utils.escapeHtml(text)
}
