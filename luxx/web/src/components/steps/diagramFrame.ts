/**
 * Draws Mermaid diagrams within a frame without an origin: the library writes style elements, which the policy of the
 * page forbids, and its texts are those of models.
 * A message `{ id, code, isDark }` of the page that shows the frame is answered with `{ id, svg }` or `{ id, error }`.
 */
import mermaid from 'mermaid'

export interface DiagramRequest {
  id: number
  code: string
  isDark: boolean
}

export interface DiagramAnswer {
  id: number
  svg?: string
  error?: string
}

let last: Promise<unknown> = Promise.resolve()

window.addEventListener('message', (message: MessageEvent<DiagramRequest>) => {
  if (message.source !== window.parent || message.origin !== window.location.origin) return
  last = last.then(() => draw(message.data)).then((answer) => window.parent.postMessage(answer, window.location.origin))
})
window.parent.postMessage({ id: 0 }, window.location.origin)

async function draw({ id, code, isDark }: DiagramRequest): Promise<DiagramAnswer> {
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: 'strict',
    htmlLabels: false,
    theme: isDark ? 'dark' : 'neutral',
    // The shadow of the theme is a light grey, which glows on a dark page.
    themeVariables: { dropShadow: 'none' },
    fontFamily: 'system-ui, sans-serif',
  })
  try {
    return { id, svg: (await mermaid.render(`diagram-${id}`, code)).svg }
  } catch (error) {
    document.body.replaceChildren()
    return { id, error: error instanceof Error ? error.message : String(error) }
  }
}
