/** Rooms: the queries of the list and of one room, and the changes that they show at once. */
import { useQueryCache } from '@pinia/colada'
import { ApiError, api, ask, askForRun, asApiError, failureOf, signedFetch } from '@/api/client'
import type { Schema } from '@/api/types'

export type Room = Schema<'RoomDetail'>
export type Seat = Schema<'SeatView'>
export type PolicyName = Schema<'PolicyName'>
export const LIST_KEY = ['rooms'] as const
export const PAGE_SIZE = 50
export const POLICIES: readonly PolicyName[] = ['round_robin', 'parallel', 'sequential', 'mention', 'selector', 'manual']

const RIGHTS = ['watch', 'speak', 'steer', 'owner'] as const

export function mayDo(room: { right: Schema<'RoomRight'> }, right: Schema<'RoomRight'>): boolean {
  return RIGHTS.indexOf(room.right) >= RIGHTS.indexOf(right)
}

export interface ListedRoom {
  id: string
  title: string
  status: Schema<'RoomStatus'> | null
  updatedAt: string
  /** What was found in it. */
  snippet: string
}

/** The newest rooms, or those in whose title, task or messages the words occur. */
export async function listRooms(words: string, pages: number): Promise<{ items: ListedRoom[]; hasMore: boolean }> {
  if (words) return findRooms(words, pages)
  const numbers = Array.from({ length: pages }, (_, index) => index + 1)
  const found = await Promise.all(
    numbers.map((page) => ask(api.GET('/chat-rooms', { params: { query: { page, page_size: PAGE_SIZE } } }))),
  )
  const items = new Map(
    found.flatMap((each) =>
      each.items.map((room) => [
        room.id,
        { id: room.id, title: room.title, status: room.status, updatedAt: room.updated_at, snippet: '' },
      ]),
    ),
  )
  return { items: [...items.values()] as ListedRoom[], hasMore: (found[0]?.total ?? 0) > pages * PAGE_SIZE }
}

async function findRooms(words: string, pages: number): Promise<{ items: ListedRoom[]; hasMore: boolean }> {
  const items = new Map<string, ListedRoom>()
  let hasMore = true
  for (let page = 1; page <= pages && hasMore; page++) {
    const found = await ask(api.GET('/search', { params: { query: { q: words, page, page_size: PAGE_SIZE } } }))
    hasMore = found.has_more
    for (const hit of found.items) {
      if (!hit.room_id || items.has(hit.room_id)) continue
      items.set(hit.room_id, {
        id: hit.room_id,
        title: hit.room_title ?? '',
        status: null,
        updatedAt: hit.created_at,
        snippet: hit.kind === 'message' ? hit.snippet.text : '',
      })
    }
  }
  return { items: [...items.values()], hasMore }
}

export function pathOf(roomId: string): { path: { room_id: string } } {
  return { path: { room_id: roomId } }
}

export function startRoom(roomId: string): Promise<Schema<'Run'>> {
  return askForRun(api.POST('/chat-rooms/{room_id}/start', { params: pathOf(roomId) }))
}

export function resumeRoom(roomId: string): Promise<Schema<'Run'>> {
  return askForRun(api.POST('/chat-rooms/{room_id}/resume', { params: pathOf(roomId) }))
}

/** Creates a room from a room file: YAML or JSON text, or a document. */
export async function importRoom(document: string | object, type = 'application/json'): Promise<Room> {
  const body = typeof document === 'string' ? document : JSON.stringify(document)
  const address = new URL('/chat-rooms/import', window.location.origin)
  const request = new Request(address, { method: 'POST', body, headers: { 'content-type': type } })
  const response = await signedFetch(request).catch((error: unknown) => {
    throw asApiError(error)
  })
  if (!response.ok) throw withFields(await failureOf(response))
  return ((await response.json()) as { data: Room }).data
}

/** An error whose sentence also names the wrong fields. */
function withFields(error: ApiError): ApiError {
  const fields = Object.entries(error.fields).map(([field, problem]) => `${field.replace(/^\$\.?/, '')}: ${problem}`)
  if (fields.length === 0) return error
  return new ApiError(`${error.message} ${fields.join('; ')}`, error.status, error.kind, error.detail)
}

const ENDINGS = { md: 'md', yaml: 'yaml', json: 'json' } as const

/** Saves the transcript or the room's file on the reader's machine. */
export async function downloadRoom(room: { id: string; title: string }, format: keyof typeof ENDINGS): Promise<void> {
  const address = new URL(`/chat-rooms/${room.id}/export?format=${format}`, window.location.origin)
  const response = await signedFetch(new Request(address)).catch((error: unknown) => {
    throw asApiError(error)
  })
  if (!response.ok) throw await failureOf(response)
  const link = document.createElement('a')
  const url = URL.createObjectURL(await response.blob())
  link.href = url
  link.download = `${room.title.replaceAll(/[\\/:*?"<>|\s]+/g, '-').slice(0, 80)}.${ENDINGS[format]}`
  link.click()
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000)
}

export function useRoomLists(): { reload: () => Promise<unknown> } {
  const cache = useQueryCache()
  return { reload: () => cache.invalidateQueries({ key: [...LIST_KEY] }) }
}
