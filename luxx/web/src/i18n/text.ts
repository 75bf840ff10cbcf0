/**
 * The texts of the UI in English and Chinese. Each area has a pair of files, `en/<area>.ts` and `zh/<area>.ts`;
 * a text that Chinese lacks is a type error. A text with values is a function.
 */
import { ref, shallowReactive, watchEffect } from 'vue'

export type Language = 'en' | 'zh'

/** The same keys, and functions of the same parameters. */
export type Texts<T> = {
  [K in keyof T]: T[K] extends string ? string : T[K] extends (...values: infer V) => string ? (...values: V) => string : Texts<T[K]>
}

export const LANGUAGES: { value: Language; label: string }[] = [
  { value: 'en', label: 'English' },
  { value: 'zh', label: '中文' },
]

const STORED = 'luxx.language'

export const language = ref<Language>(document.documentElement.lang === 'zh' ? 'zh' : 'en')

const waiting = new Set<Promise<void>>()

/** Resolves when all texts of the chosen language are loaded. */
export async function textsReady(): Promise<void> {
  while (waiting.size) await Promise.all(waiting)
}

export function chooseLanguage(chosen: Language): void {
  language.value = chosen
  localStorage.setItem(STORED, chosen)
}

watchEffect(() => {
  document.documentElement.lang = language.value
})

/** A function that returns the texts of an area, which follow the language. */
export function defineText<T extends object>(english: T, loadChinese: () => Promise<{ default: Texts<T> }>): () => Texts<T> {
  const texts = shallowReactive({ ...english }) as unknown as Texts<T>
  let chinese: Texts<T> | null = null
  watchEffect(() => {
    if (language.value === 'en') Object.assign(texts, english)
    else if (chinese) Object.assign(texts, chinese)
    else void load()
  })

  async function load(): Promise<void> {
    const loading = loadChinese().then((module) => {
      chinese = module.default
      if (language.value === 'zh') Object.assign(texts, chinese)
    })
    waiting.add(loading)
    await loading.finally(() => waiting.delete(loading))
  }

  return () => texts
}
