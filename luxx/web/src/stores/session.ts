/** The signed-in user. */
import { defineStore } from 'pinia'
import { ref } from 'vue'
import { api, ask } from '@/api/client'
import { dropTokens, isSignedIn, onSignInChange, saveTokens } from '@/api/tokens'
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

  async function signOut(): Promise<void> {
    try {
      await ask(api.POST('/auth/logout'))
    } finally {
      dropTokens()
    }
  }

  return { user, load, signIn, register, changePassword, signOut }
})
