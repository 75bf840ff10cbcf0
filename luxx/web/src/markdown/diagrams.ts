/**
 * Draws Mermaid diagrams in a hidden frame, and shows each as an image. The frame is a site of its own (`sandbox`):
 * code that a diagram might run there reaches neither the page nor what it stores.
 */
import type { DiagramAnswer, DiagramRequest } from '@/components/steps/diagramFrame'

const PATIENCE_MS = 20_000

let frame: Promise<Window> | null = null
let lastId = 0
const waiting = new Map<number, (answer: DiagramAnswer) => void>()

/** The address of the image and its width in pixels. Raises an error with the reason where the text is no diagram. */
export async function drawDiagram(code: string, isDark: boolean): Promise<{ address: string; width: number }> {
  frame ??= openFrame()
  const target = await frame
  const request: DiagramRequest = { id: ++lastId, code, isDark }
  const answer = await new Promise<DiagramAnswer>((resolve) => {
    waiting.set(request.id, resolve)
    window.setTimeout(() => resolve({ id: request.id, error: 'the diagram took too long' }), PATIENCE_MS)
    target.postMessage(request, '*') // The frame has no origin that could be named.
  })
  waiting.delete(request.id)
  if (answer.svg === undefined) throw new Error(answer.error)
  const width = Number(/viewBox="\S+ \S+ ([\d.]+)/.exec(answer.svg)?.[1] ?? 0)
  return { address: URL.createObjectURL(new Blob([answer.svg], { type: 'image/svg+xml' })), width }
}

function openFrame(): Promise<Window> {
  const element = document.createElement('iframe')
  element.setAttribute('sandbox', 'allow-scripts')
  element.src = '/ui/diagram.html'
  element.title = 'Diagrams'
  element.tabIndex = -1
  element.setAttribute('aria-hidden', 'true')
  element.className = 'diagram-frame'
  return new Promise((resolve, reject) => {
    window.setTimeout(() => reject(new Error('the frame for diagrams did not open')), PATIENCE_MS)
    window.addEventListener('message', (message: MessageEvent<DiagramAnswer>) => {
      if (message.source !== element.contentWindow || message.origin !== 'null') return
      if (message.data.id === 0 && element.contentWindow) resolve(element.contentWindow)
      waiting.get(message.data.id)?.(message.data)
    })
    document.body.append(element)
  })
}
