/** Writes down what a person says, with the speech recognition of the browser, where it has one. */

/** The part of the browser's interface that is used; TypeScript does not have it. */
interface Recognition extends EventTarget {
  lang: string
  continuous: boolean
  interimResults: boolean
  start(): void
  stop(): void
  abort(): void
}

interface ResultEvent extends Event {
  resultIndex: number
  results: ArrayLike<ArrayLike<{ transcript: string }> & { isFinal: boolean }>
}

export type DictationProblem = 'refused' | 'noMicrophone' | 'noSpeech' | 'noNetwork' | 'noLanguage' | 'failed'

const PROBLEMS: Readonly<Record<string, DictationProblem>> = {
  'not-allowed': 'refused',
  'service-not-allowed': 'refused',
  'audio-capture': 'noMicrophone',
  'no-speech': 'noSpeech',
  network: 'noNetwork',
  'language-not-supported': 'noLanguage',
}

export interface Listener {
  /** Words that do not change any more. */
  heard: (words: string) => void
  /** What is understood so far of the words after them. */
  guessed: (words: string) => void
  ended: (problem: DictationProblem | null) => void
}

/** Listens until the function that it returns is called, or the browser ends it. */
export function listen(language: string, { heard, guessed, ended }: Listener): () => void {
  const names = window as unknown as Record<string, (new () => Recognition) | undefined>
  const Recognizer = names.SpeechRecognition ?? names.webkitSpeechRecognition
  if (!Recognizer) {
    ended('failed')
    return () => undefined
  }
  const recognition = new Recognizer()
  let problem: DictationProblem | null = null
  recognition.lang = language
  recognition.continuous = true
  recognition.interimResults = true
  recognition.addEventListener('result', (event) => {
    const { results, resultIndex } = event as ResultEvent
    const later = Array.from(results).slice(resultIndex)
    const words = (isFinal: boolean): string =>
      later
        .filter((result) => result.isFinal === isFinal)
        .map((result) => result[0]?.transcript ?? '')
        .join('')
        .trim()
    if (words(true)) heard(words(true))
    guessed(words(false))
  })
  recognition.addEventListener('error', (event) => {
    const { error } = event as Event & { error: string }
    if (error !== 'aborted') problem = PROBLEMS[error] ?? 'failed'
  })
  recognition.addEventListener('end', () => ended(problem))
  try {
    recognition.start()
  } catch {
    ended('failed')
  }
  return () => recognition.stop()
}

const MEETS = /[\p{Letter}\p{Number}]/u
/** Scripts that have no blanks between words. */
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u

/** The words with the blanks that part them from the text before and after. */
export function spaced(before: string, words: string, after: string): string {
  const [first, last] = [words.at(0) ?? '', words.at(-1) ?? '']
  const parts = (one: string, other: string): boolean => one !== '' && MEETS.test(other) && !/\s/.test(one) && !UNSPACED.test(one + other)
  return `${parts(before.at(-1) ?? '', first) ? ' ' : ''}${words}${parts(last, after.at(0) ?? '') ? ' ' : ''}`
}
