/** What one does with a room: each request says where it failed, and the room is read again. */
import { computed } from 'vue'
import { useRouter } from 'vue-router'
import { api, ask, asApiError } from '@/api/client'
import type { Schema } from '@/api/types'
import { useBusy } from '@/components/busy'
import { useProblem } from '@/components/problem/useProblem'
import type { SentMark } from '@/stores/useSent'
import { pathOf, resumeRoom, type Seat, startRoom, useRoomLists } from './rooms'
import type { LiveRoom } from './useRoom'

export function useRoomActions(room: LiveRoom) {
  const router = useRouter()
  const { reload } = useRoomLists()
  const params = pathOf(room.id)
  const problem = useProblem()
  const { busy, run } = useBusy(room.refresh, problem)
  // What one says waits for nothing.
  const speech = useBusy(room.refresh, problem)

  const seatParams = (seat: Seat) => ({ path: { ...params.path, seat_id: seat.id } })
  const changeSeat = (seat: Seat, body: Schema<'SeatChanges'>) =>
    ask(api.PUT('/chat-rooms/{room_id}/agents/{seat_id}', { params: seatParams(seat), body }))

  return {
    busy,
    problem,
    isSpeaking: computed(() => speech.busy.value !== ''),
    start: () => run('start', () => startRoom(room.id)),
    resume: () => run('resume', () => resumeRoom(room.id)),
    pause: () => run('pause', () => ask(api.POST('/chat-rooms/{room_id}/stop', { params }))),
    skip: () => run('skip', () => ask(api.POST('/chat-rooms/{room_id}/skip', { params }))),
    finish: () => run('finish', () => ask(api.POST('/chat-rooms/{room_id}/finish', { params }))),
    giveFloor: (seat: Seat) => run('floor', () => ask(api.POST('/chat-rooms/{room_id}/floor', { params, body: { seat_id: seat.id } }))),
    /** `accepted` is called once the room has the message. */
    speak: (content: string, replyTo: string | null, sent: SentMark, accepted: () => void) =>
      speech.run('speak', async () => {
        const after = room.newest()
        if (after !== null) sent.begin({ sessionId: room.id, text: content, after })
        try {
          const body = replyTo === null ? { content } : { content, reply_to: replyTo }
          room.add(await ask(api.POST('/chat-rooms/{room_id}/messages', { params, body })))
          accepted()
          sent.end(true)
        } catch (error) {
          sent.end(asApiError(error).status !== 0)
          throw error
        }
      }),
    change: (body: Schema<'RoomChanges'>) => run('change', () => ask(api.PUT('/chat-rooms/{room_id}', { params, body }))),
    mute: (seat: Seat, muted: boolean) => run('mute', () => changeSeat(seat, { muted })),
    changeSeat: (seat: Seat, body: Schema<'SeatChanges'>) => run('seat', () => changeSeat(seat, body)),
    addSeat: (body: Schema<'NewSeat'>) => run('seat', () => ask(api.POST('/chat-rooms/{room_id}/agents', { params, body }))),
    removeSeat: (seat: Seat) => run('seat', () => ask(api.DELETE('/chat-rooms/{room_id}/agents/{seat_id}', { params: seatParams(seat) }))),
    /** Moves a seat to another place in the order of turns. */
    move: (seats: readonly Seat[], seat: Seat, to: number) =>
      run('move', async () => {
        const order = seats.filter((each) => each.id !== seat.id).toSpliced(to, 0, seat)
        const moved = order.map((each, index) => ({ each, index })).filter(({ each, index }) => each.turn_order !== index)
        for (const { each, index } of moved) await changeSeat(each, { turn_order: index })
      }),
    reset: () => run('reset', () => ask(api.POST('/chat-rooms/{room_id}/reset', { params }))),
    fork: (messageId: string | null) =>
      run('fork', async () => {
        const body = messageId === null ? {} : { message_id: messageId }
        const copy = await ask(api.POST('/chat-rooms/{room_id}/fork', { params, body }))
        await reload()
        await router.push(`/rooms/${copy.id}`)
      }),
    remove: async () => {
      await ask(api.DELETE('/chat-rooms/{room_id}', { params }))
      await reload()
      await router.push('/rooms')
    },
  }
}

export type RoomActions = ReturnType<typeof useRoomActions>
