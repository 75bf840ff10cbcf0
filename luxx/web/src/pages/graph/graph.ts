/** The graph of what Luxx remembers: the queries of the picture, of the list, of one entity and of its changes. */
import { api, ask } from '@/api/client'
import { firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'

export type GraphNode = Schema<'GraphNode'>
/** An edge has the positions of its nodes in `nodes`, and how many relationships it stands for. */
export interface Graph {
  nodes: GraphNode[]
  edges: number[][]
  truncated: boolean
}
export type Entity = Schema<'Entity'>
export type EntityDetails = Schema<'EntityDetails'>
export type MemoryChange = Schema<'MemoryChange'>
export const GRAPH_KEY = ['graph'] as const
const PAGE_SIZE = 50
/** Nodes of a picture, and changes that are shown. */
const MAX_NODES = 2000
const RECENT = 100

export function listEntities(words: string, pages: number): Promise<{ items: Entity[]; hasMore: boolean }> {
  const query = { page_size: PAGE_SIZE, ...(words ? { q: words } : {}) }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/graph/entities', { params: { query: { ...query, page } } })))
}

export async function listCommunities(): Promise<Schema<'Community'>[]> {
  return (await ask(api.GET('/graph/communities', { params: { query: { page_size: RECENT } } }))).items
}

/** The whole graph, or what is two facts away from an entity; `day`: what was true then, an empty text is now. */
export function readGraph(center: string, day: string): Promise<Graph> {
  const near = center ? { center, depth: 2, limit: 200 } : { limit: MAX_NODES }
  return ask(api.GET('/graph', { params: { query: { ...near, ...timeOf(day) } } }))
}

export function readEntity(id: string, day: string): Promise<EntityDetails> {
  return ask(api.GET('/graph/entities/{entity_id}', { params: { path: { entity_id: id }, query: timeOf(day) } }))
}

/** The newest merges and splits of an entity and of what was merged into it. */
export async function changesOf(id: string): Promise<MemoryChange[]> {
  return (await ask(api.GET('/memories/changes', { params: { query: { entity_id: id, page_size: RECENT } } }))).items
}

/** The end of a day, so that what began on it counts. */
function timeOf(day: string): { as_of?: string } {
  return day ? { as_of: `${day}T23:59:59Z` } : {}
}
