/** What people write into the fields of a server: its address, and lines with names and values. */
import type { Schema } from '@/api/types'

export type Transport = Schema<'McpServerView'>['transport']

/** Null for what is no address. */
export function parsed(address: string): URL | null {
  return URL.canParse(address.trim()) ? new URL(address.trim()) : null
}

const NOT_NAMES = new Set(['mcp', 'api', 'www', 'docs', 'app', 'server', 'remote'])
const MAX_NAME = 20

/** A name for the server at an address, after its host: linear for https://mcp.linear.app/mcp. Empty: none fits. */
export function nameFrom(address: string, taken: readonly string[] = []): string {
  const host = parsed(address)?.hostname ?? ''
  if (!host || /^[\d.]+$/.test(host) || host.startsWith('[')) return free(host ? 'server' : '', taken)
  const labels = host.split('.')
  if (labels.length > 1) labels.pop()
  // The end may have two parts, as that of example.co.uk.
  if (labels.length > 1 && (labels.at(-1) ?? '').length <= 3) labels.pop()
  const label = labels.toReversed().find((each) => !NOT_NAMES.has(each)) ?? labels.at(-1) ?? ''
  return free(
    label
      .replaceAll(/[^a-z0-9-]/g, '')
      .replace(/^-+/, '')
      .slice(0, MAX_NAME),
    taken,
  )
}

/** The name with a number, if there is a server of this name already. */
function free(name: string, taken: readonly string[]): string {
  let found = name
  for (let number = 2; taken.includes(found); number++) found = `${name.slice(0, MAX_NAME - 3)}-${number}`
  return found
}

export function transportFrom(address: string): Transport {
  const url = parsed(address)
  if (url && /^wss?:$/.test(url.protocol)) return 'websocket'
  return url && /\/sse\/?$/.test(url.pathname) ? 'sse' : 'http'
}

/** What of a line does not have the form `NAME=value` or `Name: value`. */
export class WrongLine extends Error {}

/** The pairs of lines such as `NAME=value`. Raises WrongLine. */
export function pairsOf(text: string, separator: '=' | ':'): Record<string, string> {
  return Object.fromEntries(
    linesOf(text).map((line) => {
      const at = line.indexOf(separator)
      const name = line.slice(0, Math.max(at, 0)).trim()
      if (!name) throw new WrongLine(line)
      return [name, line.slice(at + 1).trim()]
    }),
  )
}

export function linesOf(text: string): string[] {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean)
}
