/**
 * What a person types and has not sent or saved: kept by user and key over areas, reloads and sign-ins, in this
 * browser. Every composer and form has its draft here; files of a message are in `draftFiles.ts`.
 */
import { useEventListener } from '@vueuse/core'
import { computed, type ComputedRef, type Ref, ref, watch, type WritableComputedRef } from 'vue'
import { signedInUser } from '@/api/tokens'

const PREFIX = 'luxx.draft.'
/** Beyond these the oldest drafts are removed. */
const MAX_DRAFTS = 300

export interface Draft<T> {
  value: Ref<T>
  /** Whether it differs from what it began with. */
  isChanged: ComputedRef<boolean>
  /** Begins anew. */
  discard: () => void
}

/**
 * `key` names what is written, such as `room:01a2`; '' keeps nothing, for what cannot be written yet. `fresh` is what it
 * begins with: nothing, or what is stored. A change of `fresh` is shown where nothing was typed. Fields in `secrets`
 * are never kept.
 */
export function useDraft<T>(key: () => string, fresh: () => T, secrets: readonly (keyof T)[] = []): Draft<T> {
  const user = signedInUser()
  const fullKey = (): string => (key() ? `${PREFIX}${user}.${key()}` : '')
  let begun = JSON.stringify(fresh())
  const value = ref(load()) as Ref<T>
  const isChanged = computed(() => JSON.stringify(value.value) !== JSON.stringify(fresh()))

  function load(): T {
    begun = JSON.stringify(fresh())
    const stored = fullKey() ? readDraft(fullKey()) : undefined
    if (stored === undefined) return JSON.parse(begun) as T
    return isObject(stored) ? { ...(JSON.parse(begun) as T), ...stored } : (stored as T)
  }

  function save(): void {
    if (!fullKey()) return
    const kept = withoutSecrets(value.value)
    if (JSON.stringify(kept) === JSON.stringify(withoutSecrets(fresh()))) localStorage.removeItem(fullKey())
    else writeDraft(fullKey(), kept)
  }

  function withoutSecrets(of: T): T {
    if (secrets.length === 0) return of
    return Object.fromEntries(Object.entries(of as object).filter(([name]) => !secrets.includes(name as keyof T))) as T
  }

  function discard(): void {
    value.value = JSON.parse(JSON.stringify(fresh())) as T
  }

  watch(fullKey, () => (value.value = load()), { flush: 'sync' })
  watch(
    () => JSON.stringify(fresh()),
    (now) => {
      if (JSON.stringify(value.value) === begun) value.value = JSON.parse(now) as T
      begun = now
    },
    { flush: 'sync' },
  )
  watch(value, save, { deep: true, flush: 'sync' })
  // The same field of another tab, in front of which nobody sits.
  useEventListener(window, 'storage', (event) => {
    if (event.key === fullKey() && !document.hasFocus()) value.value = load()
  })

  return { value, isChanged, discard }
}

type Fields<T> = { [Name in keyof T]-?: WritableComputedRef<T[Name]> }

/** The draft of a form, field by field. */
export function useDraftFields<T extends object>(
  key: () => string,
  fresh: () => T,
  secrets: readonly (keyof T)[] = [],
): Omit<Draft<T>, 'value'> & { fields: Fields<T> } {
  const { value, isChanged, discard } = useDraft(key, fresh, secrets)
  const fieldOf = (name: keyof T): WritableComputedRef<T[keyof T]> =>
    computed({
      get: () => value.value[name],
      set: (typed) => (value.value = { ...value.value, [name]: typed }),
    })
  const names = Object.keys(fresh()) as (keyof T)[]
  return { fields: Object.fromEntries(names.map((name) => [name, fieldOf(name)])) as Fields<T>, isChanged, discard }
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function readDraft(fullKey: string): unknown {
  try {
    return (JSON.parse(localStorage.getItem(fullKey) ?? '{}') as { value?: unknown }).value
  } catch {
    return undefined
  }
}

function writeDraft(fullKey: string, value: unknown): void {
  const entry = JSON.stringify({ at: Date.now(), value })
  try {
    if (localStorage.getItem(fullKey) === null) removeOldest(MAX_DRAFTS - 1)
    localStorage.setItem(fullKey, entry)
  } catch {
    // The storage is full: older drafts make place for what is typed now.
    removeOldest(MAX_DRAFTS / 10)
    try {
      localStorage.setItem(fullKey, entry)
    } catch {
      // Longer than the whole storage: it stays in the field only.
    }
  }
}

function removeOldest(kept: number): void {
  const keys = Object.keys(localStorage).filter((each) => each.startsWith(PREFIX))
  if (keys.length <= kept) return
  const age = (each: string): number => (JSON.parse(localStorage.getItem(each) ?? '{}') as { at?: number }).at ?? 0
  const oldest = keys.toSorted((a, b) => age(a) - age(b)).slice(0, keys.length - kept)
  for (const each of oldest) localStorage.removeItem(each)
}
