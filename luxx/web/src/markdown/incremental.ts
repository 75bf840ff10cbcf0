/**
 * Renders a growing text: blocks that are over are rendered once, and only the last one again. Together they are
 * exactly what the whole text gives.
 */
import { markdown, type RenderEnv, sanitize } from './parser'
import { Remembered } from './remembered'

export interface Block {
  key: number
  html: string
  /** It cannot change any more. */
  isOver: boolean
}

const NO_CITATIONS: ReadonlySet<number> = new Set()
const sanitized = new Remembered<string>(500_000)
/** A link definition changes what is before it. */
const DEFINITION = /^ {0,3}\[[^\]]+\]:/m

export class IncrementalMarkdown {
  private source = ''
  private citations = NO_CITATIONS
  /** Blocks that are over, and where the text after them begins. */
  private over: Block[] = []
  private offset = 0
  /** Where the last whole line ended when blocks were looked for. */
  private linesEnd = 0

  /** The blocks of `source`, of which an earlier call had the beginning. */
  update(source: string, citations: ReadonlySet<number> = NO_CITATIONS): Block[] {
    const continues = source.startsWith(this.source) && sameNumbers(citations, this.citations)
    if (!continues) this.reset()
    // What is over has none: it would have been seen before.
    const hasDefinition = DEFINITION.test(source.slice(this.offset))
    if (hasDefinition) this.reset()
    this.source = source
    this.citations = citations
    const env: RenderEnv = { citations }
    if (hasDefinition) {
      // Rare: the text is rendered whole, so that each link finds its definition.
      markdown.parse(source, env)
      return this.blocksOf(source, 0, { citations, references: env.references })
    }
    this.closeBlocks(env)
    return [...this.over, ...this.blocksOf(source.slice(this.offset), this.over.length, env)]
  }

  private reset(): void {
    this.over = []
    this.offset = 0
    this.linesEnd = 0
  }

  /** Only whole lines decide what is over: the beginning of a line can still become something else. */
  private closeBlocks(env: RenderEnv): void {
    const linesEnd = this.source.lastIndexOf('\n') + 1
    if (linesEnd === this.linesEnd) return
    this.linesEnd = linesEnd
    const lines = this.source.slice(this.offset, linesEnd)
    const starts = topLevelStarts(lines, env)
    const last = starts.at(-1)
    if (last === undefined || starts.length < 2) return
    const end = offsetOfLine(lines, last)
    this.over = [...this.over, ...this.blocksOf(lines.slice(0, end), this.over.length, env, true)]
    this.offset += end
  }

  private blocksOf(text: string, firstKey: number, env: RenderEnv, isOver = false): Block[] {
    const tokens = markdown.parse(text, env)
    const blocks: Block[] = []
    let begin = 0
    tokens.forEach((token, index) => {
      if (token.level !== 0 || token.nesting === 1) return
      const html = markdown.renderer.render(tokens.slice(begin, index + 1), markdown.options, env)
      const safe = isOver ? sanitized.get(html, () => sanitize(html)) : sanitize(html)
      blocks.push({ key: firstKey + blocks.length, html: safe, isOver })
      begin = index + 1
    })
    return blocks
  }
}

/** The first lines of the blocks, without those that begin on the last line of a formula. */
function topLevelStarts(text: string, env: RenderEnv): number[] {
  const starts: number[] = []
  let end = 0
  for (const token of markdown.parse(text, { ...env })) {
    if (token.level !== 0 || token.nesting < 0 || !token.map) continue
    if (token.map[0] >= end) starts.push(token.map[0])
    end = token.map[1]
  }
  return starts
}

function offsetOfLine(text: string, line: number): number {
  let offset = 0
  for (let count = 0; count < line; count++) offset = text.indexOf('\n', offset) + 1
  return offset
}

function sameNumbers(first: ReadonlySet<number>, second: ReadonlySet<number>): boolean {
  return first.size === second.size && [...first].every((number) => second.has(number))
}
