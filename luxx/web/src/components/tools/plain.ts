/** Output of programs and matches of patterns, as text that cannot do anything. */

const ESCAPE = String.fromCharCode(27)
const BELL = String.fromCharCode(7)
const SEQUENCES = new RegExp(`${ESCAPE}(?:\\[[0-?]*[ -/]*[@-~]|\\][^${ESCAPE}${BELL}]*(?:${BELL}|${ESCAPE}\\\\)?|[ -~])`, 'g')

/** The text without colours and other escape sequences; of a line that was written over, what was written last. */
export function withoutEscapes(output: string): string {
  const plain = output.includes(ESCAPE) ? output.replace(SEQUENCES, '') : output
  if (!plain.includes('\r')) return plain
  return plain
    .replaceAll('\r\n', '\n')
    .split('\n')
    .map((line) => line.slice(line.lastIndexOf('\r', line.length - 2) + 1).replace('\r', ''))
    .join('\n')
}

export interface Piece {
  text: string
  isMatch: boolean
}

/**
 * The line in pieces that match and that do not. Only patterns of words, sets and alternatives are looked for: one with
 * repetition can take exponential time here, where the server has RE2.
 */
export function marked(line: string, pattern: string, ignoresCase: boolean): Piece[] {
  const found = expression(pattern, ignoresCase)
  const pieces: Piece[] = []
  let last = 0
  for (const match of found ? line.matchAll(found) : []) {
    if (match[0] === '') continue
    if (match.index > last) pieces.push({ text: line.slice(last, match.index), isMatch: false })
    pieces.push({ text: match[0], isMatch: true })
    last = match.index + match[0].length
  }
  return last < line.length ? [...pieces, { text: line.slice(last), isMatch: false }] : pieces
}

function expression(pattern: string, ignoresCase: boolean): RegExp | null {
  const bare = pattern.replace(/\\./g, '')
  if (!pattern || pattern.length > 200 || /[*+?{}()]/.test(bare) || /\\[1-9pPkuxQ]/.test(pattern)) return null
  try {
    return new RegExp(pattern, ignoresCase ? 'gi' : 'g')
  } catch {
    return null
  }
}
