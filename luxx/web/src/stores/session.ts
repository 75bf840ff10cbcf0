/** The signed-in user. */
import { defineStore } from 'pinia'
import { ref } from 'vue'
import { api, ask } from '@/api/client'
import { accessToken, dropTokens, isSignedIn, onSignInChange, saveTokens } from '@/api/tokens'
import type { Schema } from '@/api/types'

export const ADMIN_LEVEL = 4

export const useSession = defineStore('session', () => {
  const user = ref<Schema<'UserView'> | null>(null)

  onSignInChange(() => {
    if (!isSignedIn()) user.value = null
  })

  /** Loads the user of a sign-in that this browser remembers. */
  async function load(): Promise<void> {
    if (isSignedIn() && !user.value) user.value = await ask(api.GET('/auth/me'))
  }

  async function signIn(username: string, password: string): Promise<void> {
    start(await ask(api.POST('/auth/login', { body: { username, password } })))
  }

  async function register(username: string, password: string): Promise<void> {
    start(await ask(api.POST('/auth/register', { body: { username, password } })))
  }

  function start(signedIn: Schema<'SignedIn'>): void {
    saveTokens(signedIn)
    user.value = signedIn.user
  }

  async function changePassword(current: string, wanted: string): Promise<void> {
    const body = { current_password: current, new_password: wanted }
    user.value = await ask(api.POST('/auth/password', { body }))
  }

  /** Ends the sign-in, in all tabs; also where the server cannot be reached or has ended it already. */
  async function signOut(): Promise<void> {
    const token = await accessToken().catch(() => null)
    dropTokens(true)
    const headers = { authorization: `Bearer ${token}` }
    if (token) await fetch('/auth/logout', { method: 'POST', headers, keepalive: true }).catch(() => undefined)
  }

  return { user, load, signIn, register, changePassword, signOut }
})
