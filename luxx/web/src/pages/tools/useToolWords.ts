/** What a tool says about itself, in the language of the page and without marks around code. */
import type { Schema } from '@/api/types'
import { useServerText } from '@/i18n/en/server'
import { withoutMarks } from '@/i18n/format'

/** Returns the words of the tool's description, or of what it says about a parameter. */
export function useToolWords(): (tool: Schema<'ToolView'>, about: string) => string {
  const server = useServerText()
  return ({ category }, about) => {
    // Those of MCP servers are not the server's own, and may be long.
    const lines = category === 'mcp' ? [about] : about.split('\n').map((line) => server.translate(line))
    return withoutMarks(lines.join('\n'))
  }
}
