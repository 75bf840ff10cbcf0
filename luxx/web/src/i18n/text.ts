/**
 * The texts of the UI in several languages. Each language has a folder, which is found by the build: `language.ts` with its
 * name, and for each file of `en/` one with the same name. A text that is missing in one is a type error; a file that is
 * missing is named by `languages.test.ts`, and its texts are in English. A text with values is a function.
 */
import { ref, shallowReactive, watchEffect } from 'vue'

/** The name of a folder here, a language tag. */
export type Language = string

/** `language.ts` of a folder: what the language is called in itself, and how it writes numbers and times. */
export interface LanguageEntry {
  label: string
  locale: string
}

/** The same keys, and functions of the same parameters. */
export type Texts<T> = {
  [K in keyof T]: T[K] extends string ? string : T[K] extends (...values: infer V) => string ? (...values: V) => string : Texts<T[K]>
}

const ENGLISH = 'en'
const entries = import.meta.glob<LanguageEntry>('./*/language.ts', { eager: true, import: 'default' })

/** English first. */
export const LANGUAGES: ({ value: Language } & LanguageEntry)[] = Object.entries(entries)
  .map(([path, entry]) => ({ value: folderOf(path), ...entry }))
  .sort((one, other) => Number(other.value === ENGLISH) - Number(one.value === ENGLISH))

/** `zh` of `../zh/chat.ts`. */
function folderOf(path: string): Language {
  return /^[./]*([^/]+)\//.exec(path)?.[1] ?? ''
}

const STORED = 'luxx.language'

/** The language of a tag such as `zh-TW`, else English. */
function known(tag: string): Language {
  const primary = tag.toLowerCase().split('-')[0]
  return (LANGUAGES.find(({ value }) => value === tag) ?? LANGUAGES.find(({ value }) => value === primary))?.value ?? ENGLISH
}

export const language = ref<Language>(known(document.documentElement.lang))

export const locale = (): string => LANGUAGES.find(({ value }) => value === language.value)?.locale ?? ENGLISH

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

/** A function that returns the texts of an area, which follow the language. `files`: the file of the area in each folder. */
export function defineText<T extends object>(english: T, files: Record<string, () => Promise<unknown>>): () => Texts<T> {
  const texts = shallowReactive({ ...english }) as unknown as Texts<T>
  const loads = new Map(Object.entries(files).map(([path, load]) => [folderOf(path), load]))
  const loaded = new Map<Language, Partial<Texts<T>>>([[ENGLISH, {}]])
  watchEffect(() => {
    const known = loaded.get(language.value)
    if (known) Object.assign(texts, english, known)
    else void load(language.value)
  })

  async function load(wanted: Language): Promise<void> {
    const load = loads.get(wanted)
    const loading = load ? load().then((module) => (module as { default: Texts<T> }).default) : Promise.resolve({})
    const done = loading.then((translated) => {
      loaded.set(wanted, translated)
      if (language.value === wanted) Object.assign(texts, english, translated)
    })
    waiting.add(done)
    await done.finally(() => waiting.delete(done))
  }

  return () => texts
}
