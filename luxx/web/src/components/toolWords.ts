/** What a tool says about itself, in the language of the page and without marks around code. */
import type { Schema } from '@/api/types'
import { useServerText } from '@/i18n/en/server'
import { withoutMarks } from '@/i18n/format'

/** A line of a list in a description: a name, what stands for it, and its options in parentheses. */
const LISTED = /^(\w+: )(.*?)( \(.*\))?$/

/** Returns the words of the tool's description, or of what it says about a parameter. */
export function useToolWords(): (tool: Schema<'ToolView'>, about: string) => string {
  const server = useServerText()
  const lineInWords = (line: string): string => {
    const whole = server.translate(line)
    const [, name, meaning, options = ''] = (whole === line && LISTED.exec(line)) || []
    return name && meaning ? name + server.translate(meaning) + options : whole
  }
  return ({ category }, about) => {
    // Those of MCP servers are not the server's own, and may be long.
    const lines = category === 'mcp' ? [about] : about.split('\n').map(lineInWords)
    return withoutMarks(lines.join('\n'))
  }
}
