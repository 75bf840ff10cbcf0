/** Draws formulas with KaTeX, which is loaded with the first one. */
import 'katex/dist/katex.min.css'
import katex from 'katex'

export function drawMath(element: HTMLElement): void {
  const formula = element.textContent ?? ''
  const holder = document.createElement('span')
  try {
    // Into an element, not as HTML: style attributes in HTML are against the policy of the page.
    katex.render(formula, holder, {
      displayMode: element.dataset.math === 'block',
      throwOnError: true,
      trust: false,
      maxSize: 20,
      maxExpand: 200,
    })
  } catch {
    return // It stays as it was written.
  }
  element.replaceChildren(...holder.childNodes)
  element.classList.add('is-drawn')
}
