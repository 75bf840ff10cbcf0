/** The socket of the page: states of the conversations, rooms and tasks that are subscribed to, and notices. */
import { ref } from 'vue'
import { api, ask } from './client'
import { untilReachable } from './connection'
import { isSignedIn, onSignInChange } from './tokens'
import type { Schema } from './types'

const PING_MS = 25_000
const LONGEST_WAIT_MS = 30_000
const SIGN_IN_AGAIN = 4401

export type SessionState = Schema<'SessionState'>
export type Notification = Schema<'NotificationData'>

const notificationListeners = new Set<(notification: Notification) => void>()
/** Null: the session is not there any more, or may not be seen. */
type StateListener = (state: SessionState | null) => void
const stateListeners = new Map<string, Set<StateListener>>()
const anyStateListeners = new Set<(state: SessionState) => void>()
let socket: WebSocket | null = null
let isRunning = false

export const isSocketOpen = ref(false)

/** Connects while somebody is signed in, and again after each end. */
export function runSocket(): void {
  if (isRunning) return
  isRunning = true
  onSignInChange(() => {
    if (isSignedIn()) void connectAgain()
    else socket?.close()
  })
  void connectAgain()
}

export function onNotification(listener: (notification: Notification) => void): () => void {
  notificationListeners.add(listener)
  return () => notificationListeners.delete(listener)
}

/** Calls `listener` with the state of each session that is subscribed to. */
export function onState(listener: (state: SessionState) => void): () => void {
  anyStateListeners.add(listener)
  return () => anyStateListeners.delete(listener)
}

/** Calls `listener` with the state of a conversation, room or task: now, and when it changes. */
export function subscribe(sessionId: string, listener: StateListener): () => void {
  const listeners = stateListeners.get(sessionId) ?? new Set()
  stateListeners.set(sessionId, listeners)
  listeners.add(listener)
  // A second listener asks again, to learn the present state.
  send({ type: 'subscribe', session_id: sessionId })
  return () => {
    listeners.delete(listener)
    if (listeners.size > 0) return
    stateListeners.delete(sessionId)
    send({ type: 'unsubscribe', session_id: sessionId })
  }
}

function send(message: object): void {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message))
}

let isConnecting = false

async function connectAgain(): Promise<void> {
  if (isConnecting) return
  isConnecting = true
  let wait = 500
  while (isSignedIn()) {
    const openedAt = Date.now()
    const code = await connectOnce()
    wait = Date.now() - openedAt > LONGEST_WAIT_MS ? 500 : Math.min(wait * 2, LONGEST_WAIT_MS)
    if (code !== SIGN_IN_AGAIN || wait > 1_000) await untilReachable(wait, AbortSignal.timeout(wait))
  }
  isConnecting = false
}

/** Opens one socket; resolves with its close code when it has ended. */
async function connectOnce(): Promise<number> {
  let ticket: string
  try {
    ticket = (await ask(api.POST('/auth/ticket'))).ticket
  } catch {
    return 0
  }
  return new Promise((resolve) => {
    const scheme = window.location.protocol === 'https:' ? 'wss' : 'ws'
    const opened = new WebSocket(`${scheme}://${window.location.host}/ws?token=${encodeURIComponent(ticket)}`)
    const pinging = window.setInterval(() => send({ type: 'ping' }), PING_MS)
    socket = opened
    opened.onopen = () => {
      isSocketOpen.value = true
      for (const sessionId of stateListeners.keys()) send({ type: 'subscribe', session_id: sessionId })
    }
    opened.onmessage = (message: MessageEvent<string>) => receive(JSON.parse(message.data))
    opened.onclose = ({ code }) => {
      window.clearInterval(pinging)
      isSocketOpen.value = false
      socket = null
      resolve(code)
    }
  })
}

function receive(message: Schema<'SessionUpdate'> | Schema<'Notification'> | Schema<'Refusal'> | { type: 'pong' }): void {
  if (message.type === 'session_update' && 'session_id' in message) {
    const { session_id: id, data } = message as Schema<'SessionUpdate'>
    for (const listener of [...(stateListeners.get(id) ?? [])]) listener(data)
    for (const listener of anyStateListeners) listener(data)
  } else if (message.type === 'notification' && 'data' in message) {
    for (const listener of notificationListeners) listener(message.data as Notification)
  } else if (message.type === 'error' && 'session_id' in message && message.session_id) {
    for (const listener of [...(stateListeners.get(message.session_id) ?? [])]) listener(null)
  }
}
