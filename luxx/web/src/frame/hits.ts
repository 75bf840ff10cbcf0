/** Opening a hit of the search. */
import type { Router } from 'vue-router'
import type { Schema } from '@/api/types'

/** Where a hit is opened: a message of a conversation or a room at its place. It is opened again where it is open already. */
export function placeOfHit(hit: Schema<'SearchHit'>, router: Router) {
  const path = hit.room_id ? `/rooms/${hit.room_id}` : hit.task_id ? `/tasks/${hit.task_id}` : `/chat/${hit.conversation_id}`
  const place = { path, query: hit.message_id ? { message: hit.message_id } : {} }
  return { ...place, force: true, replace: router.resolve(place).fullPath === router.currentRoute.value.fullPath }
}
