/** The MCP servers that one may use, and one as its form writes it. */
import { useQuery } from '@pinia/colada'
import { useDocumentVisibility, useIntervalFn } from '@vueuse/core'
import { computed } from 'vue'
import { ApiError, api, ask } from '@/api/client'
import { allPages, listServers } from '@/api/lists'
import type { Schema } from '@/api/types'
import { LOOKS } from '@/components/states'
import type { McpText } from '@/i18n/en/mcp'
import { parsed, WrongLine } from './serverFields'

export type McpServer = Schema<'McpServerView'>
export type McpTool = Schema<'McpToolView'>
export type ShownStatus = McpServer['status'] | 'disabled'

export const SERVERS_KEY = ['mcp', 'servers'] as const
export const pathOf = (name: string) => ({ path: { name } })

export const STATUS_LOOKS = {
  ready: LOOKS.done,
  starting: LOOKS.queued,
  stopped: LOOKS.pending,
  needs_sign_in: LOOKS.waiting,
  failed: LOOKS.failed,
  disabled: LOOKS.skipped,
} as const satisfies Record<ShownStatus, unknown>

export function statusOf(server: McpServer): ShownStatus {
  return server.enabled ? server.status : 'disabled'
}

/** Whether the reader has an account there, or keeps the one that all share. */
export function hasAccount({ credential, enabled, is_editable: isEditable }: McpServer): boolean {
  return enabled && (credential === 'per_user' || (credential === 'shared' && isEditable))
}

/** Whether a sign-in is needed, or may help. */
export function maySignIn(server: McpServer): boolean {
  return hasAccount(server) && (server.status === 'needs_sign_in' || server.status === 'failed')
}

export const REFRESH_MS = 5_000

/** A server that starts, fails or is signed in to does so without this page. */
export function useServers() {
  const found = useQuery({ key: SERVERS_KEY, query: listServers })
  const visibility = useDocumentVisibility()
  useIntervalFn(() => visibility.value === 'visible' && void found.refetch(), REFRESH_MS)
  return found
}

/** The names of the projects by their ids. */
export function useProjectNames() {
  const projects = useQuery({
    key: ['projects', 'whole'],
    query: () => allPages((page) => ask(api.GET('/projects', { params: { query: { page, page_size: 100 } } }))),
  })
  return computed(() => new Map((projects.data.value ?? []).map(({ id, name }) => [id, name])))
}

/** Where it is: the host of its address, or its program. */
export function placeOf(server: McpServer): string {
  return parsed(server.url)?.host ?? server.command
}

/** What `read` returns; a wrong line is said as the refusal of a form. */
export function withLinesSaid<T>(text: McpText, read: () => T): T {
  try {
    return read()
  } catch (error) {
    if (error instanceof WrongLine) throw new ApiError(text.line(error.message), 0, 'wrong_line')
    throw error
  }
}

export function listToolsOf(name: string): Promise<McpTool[]> {
  return allPages((page) => ask(api.GET('/mcp/servers/{name}/tools', { params: { ...pathOf(name), query: { page, page_size: 100 } } })))
}
