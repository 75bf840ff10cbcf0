/** Draws formulas with KaTeX, which is loaded with the first one. */
import 'katex/dist/katex.min.css'
import katex from 'katex'
import { Remembered } from './remembered'

const drawings = new Remembered<DocumentFragment>(50_000)

export function drawMath(element: HTMLElement): void {
  const formula = element.textContent ?? ''
  const isBlock = element.dataset.math === 'block'
  try {
    const drawing = drawings.get(`${isBlock} ${formula}`, () => draw(formula, isBlock))
    element.replaceChildren(drawing.cloneNode(true))
  } catch {
    return // It stays as it was written.
  }
  element.classList.add('is-drawn')
}

/** Throws if it is no formula. */
function draw(formula: string, displayMode: boolean): DocumentFragment {
  const holder = document.createElement('span')
  // Into an element, not as HTML: style attributes in HTML are against the policy of the page.
  katex.render(formula, holder, { displayMode, throwOnError: true, trust: false, maxSize: 20, maxExpand: 200 })
  const drawing = document.createDocumentFragment()
  drawing.append(...holder.childNodes)
  return drawing
}
