/** Puts text on the clipboard, also at a plain http address, where browsers offer no clipboard to scripts. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text)
    return
  }
  const area = document.createElement('textarea')
  area.value = text
  area.className = 'sr-only'
  document.body.append(area)
  area.select()
  document.execCommand('copy')
  area.remove()
}
