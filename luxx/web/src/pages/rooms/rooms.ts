/** Rooms: the queries of the list and of one room, and the changes that they show at once. */
import { api, ask, askForRun } from '@/api/client'
import { sendDocument, saveFile } from '@/api/files'
import { firstPages } from '@/api/lists'
import { useReload } from '@/api/queries'
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
  hit: Schema<'SearchHit'> | null
}

/** The newest rooms, or those in whose title, task or messages the words occur. */
export function listRooms(words: string, pages: number): Promise<{ items: ListedRoom[]; hasMore: boolean }> {
  return firstPages(pages, PAGE_SIZE, words ? (page) => findRooms(words, page) : newestRooms)
}

async function newestRooms(page: number): Promise<{ items: ListedRoom[]; total: number }> {
  const { items, total } = await ask(api.GET('/chat-rooms', { params: { query: { page, page_size: PAGE_SIZE } } }))
  return {
    items: items.map((room) => ({ id: room.id, title: room.title, status: room.status, updatedAt: room.updated_at, snippet: '', hit: null })),
    total,
  }
}

async function findRooms(words: string, page: number): Promise<{ items: ListedRoom[]; has_more: boolean }> {
  const found = await ask(api.GET('/search', { params: { query: { q: words, page, page_size: PAGE_SIZE } } }))
  const items = found.items.flatMap((hit) =>
    hit.room_id
      ? [
          {
            id: hit.room_id,
            title: hit.room_title ?? '',
            status: null,
            updatedAt: hit.created_at,
            snippet: hit.kind === 'message' ? hit.snippet.text : '',
            hit,
          },
        ]
      : [],
  )
  return { items, has_more: found.has_more }
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
export function importRoom(document: string | object, mediaType = 'application/json'): Promise<Room> {
  const text = typeof document === 'string' ? document : JSON.stringify(document)
  return sendDocument('/chat-rooms/import', text, mediaType)
}

/** Saves the transcript (`md`) or the room's file on the reader's machine. */
export function downloadRoom(room: { id: string; title: string }, format: 'md' | 'yaml' | 'json'): Promise<void> {
  return saveFile(`/chat-rooms/${room.id}/export?format=${format}`, room.title, format)
}

export function useRoomLists(): { reload: () => Promise<unknown> } {
  const reloadQueries = useReload()
  return { reload: () => reloadQueries(LIST_KEY) }
}
