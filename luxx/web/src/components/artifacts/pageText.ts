/** The text of a page: what it is called, and what of a model's answer it is. */

/** Its first heading or line, or the name of its sheet. */
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

const FENCED = /^\s*(`{3,}|~{3,})[^\n]*\n([\s\S]*?)\n?\1\s*$/

/** The answer of a model without a code fence around all of it. */
export const withoutFence = (answer: string): string => FENCED.exec(answer)?.[2] ?? answer
