/** What a page is called: its first heading or line, the name of its sheet, or the path of its file. */

export function titleOf(content: string): string {
  const sheet = /^\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"/.exec(content)
  if (sheet) return JSON.parse(`"${sheet[1]}"`) as string
  const line = content.split('\n').find((each) => each.trim() && !/^\s*(<!--|```|[{}[\]])/.test(each)) ?? ''
  return line
    .replace(/^#+\s*|^[>*-]\s+/, '')
    .replaceAll(/[*_`]/g, '')
    .trim()
    .slice(0, 120)
}
