/**
 * The tokens of the sign-in. They are kept in localStorage, for all tabs of the browser: a refresh token is valid
 * once, and a second use ends the sign-in, so tabs must share each new pair. Web Locks let one tab refresh at a time.
 */
import type { Schema } from './types'

const KEY = 'luxx.sign-in'
const LOCK = 'luxx.refresh'
const EARLY_MS = 30_000

interface SignIn {
  access: string
  refresh: string
  expiresAt: number
}

let current: SignIn | null = read()
/** Whose data this page has shown. */
const firstUser = { id: userOf(current) }
let refreshing: Promise<string | null> | null = null
type Listener = (isElsewhere: boolean, isWanted: boolean) => void
const listeners = new Set<Listener>()

window.addEventListener('storage', (event) => {
  if (event.key === KEY || event.key === null) readAgain()
})

/** Takes over what another tab has stored. Its event may come after this tab has read the same by itself. */
function readAgain(): void {
  const before = userOf(current)
  current = read()
  if (before !== userOf(current)) notify(true)
}

/** Calls `listener` when somebody signs in or out, in this tab or in another one (`isElsewhere`). */
export function onSignInChange(listener: Listener): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** The id of the signed-in user, which the access token names; empty where nobody is signed in. */
export function signedInUser(): string {
  return userOf(current)
}

/** Whether this page has shown another person's data; false for the first person who signs in. */
export function isOtherPerson(): boolean {
  firstUser.id ||= userOf(current)
  return firstUser.id !== userOf(current)
}

function userOf(signIn: SignIn | null): string {
  if (!signIn) return ''
  try {
    const claims = (signIn.access.split('.')[1] ?? '').replace(/-/g, '+').replace(/_/g, '/')
    return String((JSON.parse(atob(claims)) as { sub: unknown }).sub)
  } catch {
    return '?'
  }
}

export function isSignedIn(): boolean {
  return current !== null
}

export function saveTokens(signedIn: Schema<'SignedIn'>): void {
  const wasSignedIn = current !== null
  current = {
    access: signedIn.access_token,
    refresh: signedIn.refresh_token,
    expiresAt: Date.now() + signedIn.expires_in * 1000,
  }
  localStorage.setItem(KEY, JSON.stringify(current))
  if (!wasSignedIn) notify(false)
}

/** `isWanted`: the person signs out. What is refused because of that ends nothing more. */
export function dropTokens(isWanted = false): void {
  if (current === null) return
  current = null
  localStorage.removeItem(KEY)
  notify(false, isWanted)
}

/** An access token that is valid for now; null after the sign-in has ended. `refused` is one that no longer is. */
export async function accessToken(refused?: string): Promise<string | null> {
  if (!current) return null
  if (current.access !== refused && current.expiresAt - Date.now() > EARLY_MS) return current.access
  refreshing ??= refreshOnce(current.access).finally(() => {
    refreshing = null
  })
  return refreshing
}

async function refreshOnce(stale: string): Promise<string | null> {
  const work = async (): Promise<string | null> => {
    readAgain() // Another tab may have refreshed meanwhile, or signed out.
    if (!current || current.access !== stale) return current?.access ?? null
    const response = await fetch('/auth/refresh', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ refresh_token: current.refresh }),
    })
    if (response.ok) {
      saveTokens(((await response.json()) as Schema<'Success_SignedIn'>).data)
    } else if (response.status < 500 && response.status !== 408 && response.status !== 429) {
      // Whatever the reason, the server does not accept this sign-in any more.
      dropTokens()
    } else {
      throw new Error(`refresh failed with status ${response.status}`)
    }
    return current?.access ?? null
  }
  // Locks exist in secure contexts only: not at a plain http address of another machine.
  return navigator.locks ? navigator.locks.request(LOCK, work) : work()
}

function read(): SignIn | null {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? 'null')
    const isSignIn = typeof value === 'object' && value !== null && 'access' in value && 'refresh' in value
    return isSignIn ? (value as SignIn) : null
  } catch {
    return null
  }
}

function notify(isElsewhere: boolean, isWanted = false): void {
  for (const listener of listeners) listener(isElsewhere, isWanted)
}
