/** Lists that are shown whole: all pages of them. */
import { api, ask } from './client'
import type { Schema } from './types'

const PAGE_SIZE = 100

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

export function listSkills(): Promise<Schema<'SkillView'>[]> {
  return allPages((page) => ask(api.GET('/skills', { params: { query: { page, page_size: PAGE_SIZE } } })))
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
