/** Lists of the API, which come in pages: the first of them, or all. */
import { api, ask } from './client'
import type { Schema } from './types'

const PAGE_SIZE = 100

/** The first `pages` pages, read at once. An item that is on several pages is there once. */
export async function firstPages<T extends { id: string | number }>(
  pages: number,
  pageSize: number,
  read: (page: number) => Promise<{ items: T[]; total: number } | { items: T[]; has_more: boolean }>,
): Promise<{ items: T[]; hasMore: boolean }> {
  const found = await Promise.all(Array.from({ length: pages }, (_, index) => read(index + 1)))
  const items = new Map<T['id'], T>()
  for (const item of found.flatMap((each) => each.items)) if (!items.has(item.id)) items.set(item.id, item)
  const last = found.at(-1)
  const hasMore = last !== undefined && ('has_more' in last ? last.has_more : last.total > pages * pageSize)
  return { items: [...items.values()], hasMore }
}

export async function allPages<T>(read: (page: number) => Promise<{ items: T[]; total: number }>): Promise<T[]> {
  const items: T[] = []
  for (let page = 1; ; page++) {
    const found = await read(page)
    items.push(...found.items)
    if (found.items.length === 0 || items.length >= found.total) return items
  }
}

export function listTools(): Promise<Schema<'ToolView'>[]> {
  return allPages((page) => ask(api.GET('/tools', { params: { query: { page, page_size: PAGE_SIZE } } })))
}

/** Those of the system and the tenant, and of a project if one is given. */
export function listSkills(projectId?: string | null): Promise<Schema<'SkillView'>[]> {
  const ofProject = projectId ? { project_id: projectId } : {}
  return allPages((page) => ask(api.GET('/skills', { params: { query: { page, page_size: PAGE_SIZE, ...ofProject } } })))
}

export function listServers(): Promise<Schema<'McpServerView'>[]> {
  return allPages((page) => ask(api.GET('/mcp/servers', { params: { query: { page, page_size: PAGE_SIZE } } })))
}

export function listChanges(): Promise<Schema<'McpChange'>[]> {
  return allPages((page) => ask(api.GET('/mcp/changes', { params: { query: { page, page_size: PAGE_SIZE } } })))
}

export function listCompositions(): Promise<Schema<'CompositionView'>[]> {
  return allPages((page) => ask(api.GET('/tools/compositions', { params: { query: { page, page_size: PAGE_SIZE } } })))
}
