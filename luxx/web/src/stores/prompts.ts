/** Saved prompts: their list, their variables, and the text that a new prompt begins with. */
import { useQueryCache } from '@pinia/colada'
import { defineStore } from 'pinia'
import { ref } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'

export type Prompt = Schema<'PromptView'>

export const PROMPTS_KEY = ['prompts'] as const
const PAGE_SIZE = 100
/** The most that the slash commands offer; the server limits a user to 500, and a tenant has shared ones. */
const MOST_PAGES = 10

/** The newest prompts, or those whose name, title or description contains the words. */
export async function listPrompts(words: string, pages: number): Promise<{ items: Prompt[]; hasMore: boolean }> {
  const items = new Map<string, Prompt>()
  let total = 0
  for (let page = 1; page <= pages; page += 1) {
    const query = { page, page_size: PAGE_SIZE, ...(words ? { q: words } : {}) }
    const found = await ask(api.GET('/prompts', { params: { query } }))
    for (const prompt of found.items) items.set(prompt.id, prompt)
    total = found.total
    if (page * PAGE_SIZE >= total) break
  }
  return { items: [...items.values()], hasMore: total > pages * PAGE_SIZE }
}

export async function listAllPrompts(): Promise<Prompt[]> {
  return (await listPrompts('', MOST_PAGES)).items
}

export const usePrompts = defineStore('prompts', () => {
  const cache = useQueryCache()
  /** The text that the next new prompt begins with: that of a message or of another prompt. */
  const draft = ref('')

  function takeDraft(): string {
    const taken = draft.value
    draft.value = ''
    return taken
  }

  function reload(): Promise<unknown> {
    return cache.invalidateQueries({ key: [...PROMPTS_KEY] })
  }

  return { draft, takeDraft, reload }
})
