/**
 * Makes an element contain this HTML and keeps the nodes that stay the same: while a paragraph grows, its text node
 * grows, the reader's selection stays, and the browser lays out less.
 */
const inert = document.implementation.createHTMLDocument('')

/** `html` is sanitised; it is parsed as the content of a `div` of a document that loads and runs nothing. */
export function patchHtml(element: Element, html: string): void {
  const wanted = inert.createElement('div')
  wanted.innerHTML = html
  patchChildren(element, wanted)
}

function patchChildren(target: Node, wanted: Node): void {
  let present = target.firstChild
  for (const node of [...wanted.childNodes]) {
    if (present && patchNode(present, node)) {
      present = present.nextSibling
    } else {
      const following: ChildNode | null = present?.nextSibling ?? null
      if (present) target.replaceChild(node, present)
      else target.appendChild(node)
      present = following
    }
  }
  while (present) {
    const following: ChildNode | null = present.nextSibling
    present.remove()
    present = following
  }
}

/** Returns whether the node could be made like the wanted one. */
function patchNode(present: Node, wanted: Node): boolean {
  if (present instanceof Text && wanted.nodeType === Node.TEXT_NODE) {
    const data = wanted.nodeValue ?? ''
    if (data.startsWith(present.data)) present.appendData(data.slice(present.data.length))
    else present.data = data
    return true
  }
  if (!(present instanceof Element) || wanted.nodeType !== Node.ELEMENT_NODE) return false
  if (!present.cloneNode(false).isEqualNode(wanted.cloneNode(false))) return false
  patchChildren(present, wanted)
  return true
}
