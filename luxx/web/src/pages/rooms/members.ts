/** The members of a room, as the dialog of members reads and changes them. */
import { computed } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import type { Members } from '@/components/lists/MembersDialog.vue'
import { useRoomsText } from '@/i18n/en/rooms'
import { pathOf } from './rooms'

type Right = Schema<'MemberRight'>
const RIGHTS: readonly Right[] = ['watch', 'speak', 'steer']

export function useMembers(roomId: () => string) {
  const text = useRoomsText()
  const pathOfMember = (userId: number) => ({ path: { room_id: roomId(), user_id: userId } })

  return computed<Members>(() => ({
    key: `room-members:${roomId()}`,
    rights: RIGHTS.map((value) => ({ value, label: text.rights[value], hint: text.rightsHint[value] })),
    proposed: 'speak',
    description: text.membersHint,
    leaveLabel: text.leaveRoom,
    list: async () => {
      const params = { ...pathOf(roomId()), query: { page_size: 100 } }
      return (await ask(api.GET('/chat-rooms/{room_id}/members', { params }))).items
    },
    add: (username, right) => {
      const body = { username, right: right as Right }
      return ask(api.POST('/chat-rooms/{room_id}/members', { params: pathOf(roomId()), body }))
    },
    change: (userId, right) => {
      const body = { right: right as Right }
      return ask(api.PUT('/chat-rooms/{room_id}/members/{user_id}', { params: pathOfMember(userId), body }))
    },
    remove: (userId) => ask(api.DELETE('/chat-rooms/{room_id}/members/{user_id}', { params: pathOfMember(userId) })),
  }))
}
