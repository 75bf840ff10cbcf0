// @vitest-environment jsdom
import { expect, test } from 'vitest'
import type { ServerSentences } from './serverSentences'
import { LANGUAGES } from './text'

type Module = Record<string, unknown>
const modules = import.meta.glob<Module>('./*/**/*.ts', { eager: true })
const others = LANGUAGES.map(({ value }) => value).filter((value) => value !== 'en')

/** Of an object of texts: the path of each text. */
function pathsOf(texts: unknown, before = ''): string[] {
  if (typeof texts !== 'object' || texts === null) return [before]
  return Object.entries(texts).flatMap(([key, value]) => pathsOf(value, before ? `${before}.${key}` : key))
}

/** By the file within its folder: the English texts of each area. */
function englishTexts(): Map<string, unknown> {
  const found = new Map<string, unknown>()
  for (const [path, module] of Object.entries(modules)) {
    const use = Object.entries(module).find(([name]) => /^use\w+Text$/.test(name))?.[1]
    if (path.startsWith('./en/') && typeof use === 'function') found.set(path.slice('./en/'.length), (use as () => unknown)())
  }
  return found
}

test('each folder has a language of its own, and English is the first', () => {
  expect(LANGUAGES[0]?.value).toBe('en')
  expect(others).toContain('zh')
  expect(new Set(LANGUAGES.map(({ label }) => label)).size).toBe(LANGUAGES.length)
  for (const { locale } of LANGUAGES) expect(Intl.DateTimeFormat.supportedLocalesOf(locale)).toEqual([locale])
})

test.each(others)('no text of the page is missing in %s', (language) => {
  const missing: string[] = []
  for (const [file, texts] of englishTexts()) {
    const translated = new Set(pathsOf(modules[`./${language}/${file}`]?.default ?? {}))
    const wanted = pathsOf(texts)
    missing.push(...wanted.filter((path) => !translated.has(path)).map((path) => `${language}/${file}: ${path}`))
  }
  expect(missing).toEqual([])
  expect(englishTexts().size).toBeGreaterThan(25)
})

test.each(others)('no sentence of the server that another language has is missing in %s', (language) => {
  const tablesOf = (name: string): ServerSentences => (modules[`./${name}/server.ts`]?.default as { tables: ServerSentences }).tables
  const missing: string[] = []
  for (const table of ['sentences', 'parts', 'kinds'] as const) {
    const wanted = new Set(others.flatMap((name) => Object.keys(tablesOf(name)[table])))
    const own = tablesOf(language)[table]
    missing.push(...[...wanted].filter((sentence) => !(sentence in own)).map((sentence) => `${language}/server.ts, ${table}: ${sentence}`))
  }
  expect(missing).toEqual([])
})
