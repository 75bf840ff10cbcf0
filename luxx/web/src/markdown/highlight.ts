/** Colours code; the languages are loaded when the first code is shown. */
import { Remembered } from './remembered'

let loading: Promise<typeof import('highlight.js/lib/common')> | null = null

const LONGEST = 60_000

const coloured = new Remembered<string>(500_000)

export async function highlight(element: HTMLElement): Promise<void> {
  const code = element.textContent ?? ''
  const language = element.dataset.language ?? ''
  if (!language || code.length > LONGEST) return
  loading ??= import('highlight.js/lib/common')
  const { default: hljs } = await loading
  if (!hljs.getLanguage(language)) return
  // The library escapes the code; only its own spans are HTML.
  element.innerHTML = coloured.get(`${language} ${code}`, () => hljs.highlight(code, { language, ignoreIllegals: true }).value)
}
