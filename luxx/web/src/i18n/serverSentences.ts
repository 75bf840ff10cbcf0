/**
 * What the server writes for people, in another language. A sentence is looked up as a whole, then by its pattern, then by the
 * kind of its error. `{}` stands for a value; `{1}` puts the first one into the translation, `{+1}` translates it too.
 */
import type { ServerText } from './en/server'

/** `parts`: what sentences are put together from; `kinds`: what is true of every error of a kind, `{}` is its sentence. */
export interface ServerSentences {
  sentences: Record<string, string>
  parts: Record<string, string>
  kinds: Record<string, string>
}

type Pattern = [pattern: RegExp, translation: string]

/** In their order: one that may fit what others mean stands after them. */
function patternsOf(catalog: Record<string, string>): Pattern[] {
  return Object.entries(catalog).map(([sentence, translation]) => {
    const source = sentence
      .split('{}')
      .map((words) => words.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
      .join('(.*?)')
    const first = source.replace(/^[a-z]/, (letter) => `[${letter}${letter.toUpperCase()}]`)
    return [new RegExp(`^${first}\\.?$`, 's'), translation]
  })
}

/** The texts of the file `server.ts` of a language; `tables` are for the test that compares languages. */
export function translator(tables: ServerSentences): ServerText & { tables: ServerSentences } {
  const { sentences, parts, kinds } = tables
  const whole = patternsOf(sentences)
  const pieces = patternsOf(parts)

  function lookUp(text: string, patterns: readonly Pattern[]): string | null {
    const known = sentences[text.charAt(0).toLowerCase() + text.slice(1).replace(/\.$/, '')]
    if (known) return known
    for (const [pattern, translation] of patterns) {
      const values = pattern.exec(text)
      if (values) return filled(translation, values)
    }
    return null
  }

  function filled(translation: string, values: readonly string[]): string {
    return translation.replace(/\{(\+?)(\d)\}/g, (_, nested: string, index: string) => {
      const value = values[Number(index)] ?? ''
      return nested ? (parts[value] ?? lookUp(value, [...whole, ...pieces]) ?? value) : value
    })
  }

  /** Several problems of the same thing, each of which has a translation; a sentence may have "; " in it too. */
  function together(text: string): string | null {
    const problems = text.split('; ')
    let translated = ''
    for (let begin = 0; begin < problems.length;) {
      let end = problems.length
      let found: string | null = null
      while (end > begin && (found = lookUp(problems.slice(begin, end).join('; '), whole)) === null) end -= 1
      if (found === null) return null
      translated += found
      begin = end
    }
    return translated
  }

  return {
    tables,
    translate: (sentence, kind = '') => lookUp(sentence, whole) ?? together(sentence) ?? kinds[kind]?.replace('{}', () => sentence) ?? sentence,
  }
}
