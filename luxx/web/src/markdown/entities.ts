/**
 * Named character references (`&copy;`) for markdown-it, which imports them as the package `entities`. The browser
 * knows all of them; the table of that package would be 15 kB of what the chat loads.
 */
const holder = document.createElement('i')

/** The characters of a reference such as `&copy;`; what is none stays as it is. `reference` matches `&name;`. */
export function decodeHTMLStrict(reference: string): string {
  if (!/^&[a-z][a-z0-9]*;$/i.test(reference)) return reference
  holder.innerHTML = reference
  const decoded = holder.textContent
  // `&notit;` is none, but the browser reads the `&not` in it.
  return decoded.endsWith(';') && reference !== '&semi;' ? reference : decoded
}
