/**
 * A message whose answer has not come yet. Only the server knows whether it has it: a page that is loaded again, or a
 * lost connection, would leave the text as a draft, to be sent a second time. So the message is marked before it is
 * sent, and the messages of the server say afterwards whether it is one of them.
 */
import { onScopeDispose, type Ref, ref, watch } from 'vue'
import { connection } from '@/api/connection'
import { signedInUser } from '@/api/tokens'

const PREFIX = 'luxx.sent.'

export interface Sent {
  sessionId: string
  text: string
  /** The newest message that was known; one that has arrived is newer. */
  after: string
}

export interface SentMark {
  /** Whether the server is being asked. */
  isUnknown: Readonly<Ref<boolean>>
  begin: (sent: Sent) => void
  /** The server has answered, or cannot be reached: then it is asked as soon as it can. */
  end: (isAnswered: boolean) => void
}

/** `key` is that of the draft. `settle` is called when it is known whether a message of before has arrived. */
export function useSent(key: () => string, hasArrived: (sent: Sent) => Promise<boolean>, settle: (sent: Sent, isThere: boolean) => void): SentMark {
  const user = signedInUser()
  const fullKey = (): string => `${PREFIX}${user}.${key()}`
  const isUnknown = ref(false)
  let isOver = false
  /** What this page sends now has its answer still to come. */
  let underway = ''

  async function check(): Promise<void> {
    const of = fullKey()
    const sent = of === underway ? null : read(of)
    isUnknown.value = sent !== null && connection.isOnline.value
    if (!sent || !isUnknown.value) return
    try {
      const isThere = await hasArrived(sent)
      if (isOver || of !== fullKey()) return
      localStorage.removeItem(of)
      settle(sent, isThere)
    } catch {
      // It is asked again when the server can be reached.
    } finally {
      if (of === fullKey()) isUnknown.value = false
    }
  }

  watch([fullKey, connection.isOnline], check, { immediate: true })
  onScopeDispose(() => (isOver = true))

  return {
    isUnknown,
    begin(sent) {
      underway = fullKey()
      localStorage.setItem(underway, JSON.stringify(sent))
    },
    end(isAnswered) {
      if (isAnswered && underway) localStorage.removeItem(underway)
      underway = ''
    },
  }
}

function read(key: string): Sent | null {
  try {
    return JSON.parse(localStorage.getItem(key) ?? 'null') as Sent | null
  } catch {
    return null
  }
}
