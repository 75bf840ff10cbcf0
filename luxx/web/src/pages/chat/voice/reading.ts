/** Reads an answer aloud with a voice of the browser or its device. */
import { languageOf, spokenPieces } from './spoken'

/** Why nothing is heard. */
export type ReadingProblem = 'nothing' | 'noVoices' | 'noVoice' | 'refused' | 'failed'

/** Some browsers have their voices a moment after they were asked for the first time. */
const VOICES_MS = 2000

export class Reading {
  /** The language in which it is read, as a tag. */
  language = ''
  private isEnded = false
  /** Browsers forget one that nothing refers to, and then never say that it has ended. */
  private utterance: SpeechSynthesisUtterance | null = null

  constructor(
    private readonly source: string,
    private readonly fallback: string,
    private readonly ended: (problem: ReadingProblem | null) => void,
  ) {}

  async start(): Promise<void> {
    const pieces = spokenPieces(this.source)
    if (pieces.length === 0) return this.end('nothing')
    this.language = languageOf(pieces.join(' '), this.fallback)
    const voices = await voicesOf()
    if (this.isEnded) return
    if (voices.length === 0) return this.end('noVoices')
    const voice = chosen(voices, this.language)
    if (!voice) return this.end('noVoice')
    this.speak(pieces, voice)
  }

  /** Nothing more is heard. */
  stop(): void {
    if (this.isEnded) return
    this.isEnded = true
    speechSynthesis.cancel()
  }

  private speak([piece, ...rest]: readonly string[], voice: SpeechSynthesisVoice): void {
    if (this.isEnded) return
    if (piece === undefined) return this.end(null)
    const utterance = new SpeechSynthesisUtterance(piece)
    utterance.voice = voice
    utterance.lang = voice.lang
    utterance.onend = () => this.speak(rest, voice)
    utterance.onerror = ({ error }) => {
      if (error === 'canceled' || error === 'interrupted') this.end(null)
      else this.end(error === 'not-allowed' ? 'refused' : 'failed')
    }
    this.utterance = utterance
    speechSynthesis.speak(this.utterance)
  }

  private end(problem: ReadingProblem | null): void {
    if (this.isEnded) return
    this.stop()
    this.ended(problem)
  }
}

async function voicesOf(): Promise<SpeechSynthesisVoice[]> {
  // What an earlier page left in the queue would be heard first.
  if (speechSynthesis.speaking || speechSynthesis.pending) speechSynthesis.cancel()
  const known = speechSynthesis.getVoices()
  if (known.length) return known
  await new Promise<void>((resolve) => {
    const timer = window.setTimeout(resolve, VOICES_MS)
    speechSynthesis.addEventListener(
      'voiceschanged',
      () => {
        window.clearTimeout(timer)
        resolve()
      },
      { once: true },
    )
  })
  return speechSynthesis.getVoices()
}

/** The voice of the language that the browser prefers; one of the device rather than one that sends the text away. */
function chosen(voices: readonly SpeechSynthesisVoice[], language: string): SpeechSynthesisVoice | undefined {
  const primary = (tag: string): string => tag.toLowerCase().split(/[-_]/)[0] ?? ''
  const fitting = voices.filter(({ lang }) => primary(lang) === primary(language))
  const local = fitting.filter(({ localService }) => localService)
  const offered = local.length ? local : fitting
  const preferred = navigator.languages.map((tag) => tag.toLowerCase())
  return offered.find(({ lang }) => preferred.includes(lang.replace('_', '-').toLowerCase())) ?? offered.find((voice) => voice.default) ?? offered[0]
}
