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
let refreshing: Promise<string | null> | null = null
const listeners = new Set<() => void>()

window.addEventListener('storage', (event) => {
  if (event.key !== KEY && event.key !== null) return
  const wasSignedIn = current !== null
  current = read()
  if (wasSignedIn !== (current !== null)) notify()
})

/** Calls `listener` when somebody signs in or out, in any tab. */
export function onSignInChange(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
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
  if (!wasSignedIn) notify()
}

export function dropTokens(): void {
  current = null
  localStorage.removeItem(KEY)
  notify()
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
    current = read() // Another tab may have refreshed meanwhile.
    if (!current || current.access !== stale) return current?.access ?? null
    const response = await fetch('/auth/refresh', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ refresh_token: current.refresh }),
    })
    if (response.ok) {
      saveTokens(((await response.json()) as Schema<'Success_SignedIn'>).data)
    } else if (response.status === 401 || response.status === 403) {
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

function notify(): void {
  for (const listener of listeners) listener()
}
