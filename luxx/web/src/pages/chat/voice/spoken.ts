/** What of an answer is read aloud, and in which language. Nothing here speaks. */
import { markdown } from '@/markdown/parser'

/** Browsers stop in the middle of longer texts, and a short one ends soon after it was stopped. */
const PIECE_CHARACTERS = 220

/** Scripts that one language, or its readers, can be told from. */
const SCRIPTS: readonly (readonly [RegExp, string])[] = [
  [/[\p{Script=Hiragana}\p{Script=Katakana}]/gu, 'ja'],
  [/\p{Script=Hangul}/gu, 'ko'],
  [/\p{Script=Han}/gu, 'zh'],
  [/\p{Script=Cyrillic}/gu, 'ru'],
  [/\p{Script=Greek}/gu, 'el'],
  [/\p{Script=Arabic}/gu, 'ar'],
  [/\p{Script=Hebrew}/gu, 'he'],
  [/\p{Script=Devanagari}/gu, 'hi'],
  [/\p{Script=Thai}/gu, 'th'],
]

/** Frequent short words of languages in Latin letters. */
const WORDS: Readonly<Record<string, string>> = {
  en: 'the and of to is in that it for with are this you',
  de: 'der die das und ist nicht ein eine mit für auf den sie',
  fr: 'le la les des et est une dans que pour pas vous qui',
  es: 'el los las del que una por con para está como más es',
  it: 'il gli che di della per non sono con una è nel',
  pt: 'os das do da que não uma para com são em mais é',
  nl: 'het een van en niet dat voor zijn met op deze wordt',
}

/** The language of a text as a tag such as `de`; `fallback` where nothing says which one it is. */
export function languageOf(text: string, fallback: string): string {
  const shown = text.slice(0, 4000)
  const letters = shown.match(/\p{Letter}/gu)?.length ?? 0
  for (const [script, language] of SCRIPTS) {
    const share = (shown.match(script)?.length ?? 0) / Math.max(1, letters)
    // A Japanese text has many Han characters too.
    if (share > (language === 'ja' ? 0.1 : 0.3)) return language
  }
  const words = shown.toLowerCase().match(/\p{Letter}+/gu) ?? []
  const counts = Object.entries(WORDS).map(([language, list]) => {
    const known = new Set(list.split(' '))
    return [language, words.filter((word) => known.has(word)).length] as const
  })
  const [best, count] = counts.reduce((one, other) => (other[1] > one[1] ? other : one), ['', 0] as const)
  return count > 0 ? best : fallback
}

/** The words of an answer, without code blocks and formulas, in pieces of some sentences. */
export function spokenPieces(source: string): string[] {
  return spokenParagraphs(source).flatMap(piecesOf)
}

function spokenParagraphs(source: string): string[] {
  return markdown
    .parse(source, { citations: new Set() })
    .filter((token) => token.type === 'inline')
    .map((token) => wordsOf(token.children ?? []))
    .filter((words) => /[\p{Letter}\p{Number}]/u.test(words))
}

interface Inline {
  type: string
  content: string
  markup: string
}

function wordsOf(tokens: readonly Inline[]): string {
  let isAddress = false
  const words = tokens.map(({ type, content, markup }) => {
    if (type === 'link_open') isAddress = markup === 'linkify' || markup === 'autolink'
    else if (type === 'link_close') isAddress = false
    else if (type === 'softbreak' || type === 'hardbreak') return ' '
    else if (type === 'text' && isAddress) return content.replace(/^\w+:\/\//, '').replace(/[/?#].*$/, '')
    else if (type === 'text' || type === 'code_inline' || type === 'image') return content
    return ''
  })
  // Numbers of sources are no words.
  const joined = words.join('').replace(/\[\d{1,3}\]/g, '')
  return joined.replace(/\s+/g, ' ').trim()
}

function piecesOf(paragraph: string): string[] {
  const pieces: string[] = []
  for (const sentence of paragraph.match(/[^.!?。！？]+(?:[.!?。！？]+|$)\s*/g) ?? [paragraph]) {
    for (const part of cut(sentence)) {
      const last = pieces.at(-1)
      if (last !== undefined && last.length + part.length <= PIECE_CHARACTERS) pieces[pieces.length - 1] = last + part
      else pieces.push(part)
    }
  }
  return pieces.map((piece) => piece.trim()).filter(Boolean)
}

/** A sentence of many words in parts, at blanks where it has some. */
function cut(sentence: string): string[] {
  const parts: string[] = []
  let rest = sentence
  while (rest.length > PIECE_CHARACTERS) {
    const blank = rest.lastIndexOf(' ', PIECE_CHARACTERS)
    const end = blank > PIECE_CHARACTERS / 2 ? blank + 1 : PIECE_CHARACTERS
    parts.push(rest.slice(0, end))
    rest = rest.slice(end)
  }
  return [...parts, rest]
}
