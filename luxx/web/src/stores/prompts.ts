/** Saved prompts: their list, their variables, and the text that a new prompt begins with. */
import { defineStore } from 'pinia'
import { ref } from 'vue'
import { api, ask } from '@/api/client'
import { allPages, firstPages } from '@/api/lists'
import { useReload } from '@/api/queries'
import type { Schema } from '@/api/types'

export type Prompt = Schema<'PromptView'>

export const PROMPTS_KEY = ['prompts'] as const
const PAGE_SIZE = 100

function readPage(page: number, words = ''): Promise<{ items: Prompt[]; total: number }> {
  const query = { page, page_size: PAGE_SIZE, ...(words ? { q: words } : {}) }
  return ask(api.GET('/prompts', { params: { query } }))
}

/** The newest prompts, or those whose name, title or description contains the words. */
export function listPrompts(words: string, pages: number): Promise<{ items: Prompt[]; hasMore: boolean }> {
  return firstPages(pages, PAGE_SIZE, (page) => readPage(page, words))
}

export function listAllPrompts(): Promise<Prompt[]> {
  return allPages(readPage)
}

export const usePrompts = defineStore('prompts', () => {
  const reloadQueries = useReload()
  /** The text that the next new prompt begins with: that of a message or of another prompt. */
  const draft = ref('')

  function takeDraft(): string {
    const taken = draft.value
    draft.value = ''
    return taken
  }

  function reload(): Promise<unknown> {
    return reloadQueries(PROMPTS_KEY)
  }

  return { draft, takeDraft, reload }
})
