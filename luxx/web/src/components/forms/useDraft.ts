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
  /** Marks what is sent now; the function is called once the server has it. */
  submit: () => Submitted<T>
}

/**
 * What was sent begins anew; what was typed since then stays, as a change. `created` is what a form of something new
 * made: the change is then the draft of its own form, of this key and these values. Returns whether there is a change.
 */
export type Submitted<T> = (created?: { key: string; fresh: T }) => boolean

/**
 * `key` names what is written, such as `room:01a2`; '' keeps nothing, for what cannot be written yet. `fresh` is what it
 * begins with: nothing, or what is stored. A change of `fresh` is shown in the fields that were not changed. Fields in
 * `secrets` are never kept.
 */
export function useDraft<T>(key: () => string, fresh: () => T, secrets: readonly (keyof T)[] = []): Draft<T> {
  const user = signedInUser()
  const fullKey = (): string => (key() ? `${PREFIX}${user}.${key()}` : '')
  let begun = JSON.stringify(fresh())
  let discards = 0
  const value = ref(load()) as Ref<T>
  const isChanged = computed(() => !isSame(value.value, fresh()))

  function load(): T {
    begun = JSON.stringify(fresh())
    const stored = fullKey() ? readDraft(fullKey()) : undefined
    if (stored === undefined) return JSON.parse(begun) as T
    return isObject(stored) ? { ...(JSON.parse(begun) as T), ...stored } : (stored as T)
  }

  function save(): void {
    if (!fullKey()) return
    const kept = withoutSecrets(value.value)
    if (isSame(kept, withoutSecrets(fresh()))) localStorage.removeItem(fullKey())
    else writeDraft(fullKey(), kept)
  }

  function withoutSecrets(of: T): T {
    if (secrets.length === 0) return of
    return Object.fromEntries(Object.entries(of as object).filter(([name]) => !secrets.includes(name as keyof T))) as T
  }

  function discard(): void {
    discards += 1
    value.value = clone(fresh())
  }

  function submit(): Submitted<T> {
    const sent = clone(value.value)
    const of = fullKey()
    const before = discards
    return (created) => {
      if (discards !== before) return false
      if (of !== fullKey()) {
        // The form shows something else by now.
        if (isSame(readDraft(of), withoutSecrets(sent))) localStorage.removeItem(of)
        return false
      }
      const base = created?.fresh ?? fresh()
      const rest = clone(typedSince(sent, value.value, base))
      const isTyped = !isSame(rest, base)
      if (created && isTyped) writeDraft(`${PREFIX}${user}.${created.key}`, withoutSecrets(rest))
      value.value = created ? clone(fresh()) : rest
      // A page that was left in the meantime watches nothing.
      save()
      return isTyped
    }
  }

  watch(fullKey, () => (value.value = load()), { flush: 'sync' })
  watch(
    () => JSON.stringify(fresh()),
    (now) => {
      value.value = clone(typedSince(JSON.parse(begun) as T, value.value, fresh()))
      begun = now
    },
    { flush: 'sync' },
  )
  watch(value, save, { deep: true, flush: 'sync' })
  // The same field of another tab, in front of which nobody sits.
  useEventListener(window, 'storage', (event) => {
    if (event.key === fullKey() && !document.hasFocus()) value.value = load()
  })

  return { value, isChanged, discard, submit }
}

/** Whether something that was typed waits under this key. */
export const hasDraft = (key: string): boolean => readDraft(`${PREFIX}${signedInUser()}.${key}`) !== undefined

type Fields<T> = { [Name in keyof T]-?: WritableComputedRef<T[Name]> }

/** The draft of a form, field by field. */
export function useDraftFields<T extends object>(
  key: () => string,
  fresh: () => T,
  secrets: readonly (keyof T)[] = [],
): Omit<Draft<T>, 'value'> & { fields: Fields<T> } {
  const { value, ...draft } = useDraft(key, fresh, secrets)
  const fieldOf = (name: keyof T): WritableComputedRef<T[keyof T]> =>
    computed({
      get: () => value.value[name],
      set: (typed) => (value.value = { ...value.value, [name]: typed }),
    })
  const names = Object.keys(fresh()) as (keyof T)[]
  return { fields: Object.fromEntries(names.map((name) => [name, fieldOf(name)])) as Fields<T>, ...draft }
}

/** `base`, with what differs between `sent` and `now`, field by field. */
function typedSince<T>(sent: T, now: T, base: T): T {
  if (!isObject(sent) || !isObject(now) || !isObject(base)) return isSame(sent, now) ? base : now
  const typed = Object.entries(now).filter(([name, value]) => !isSame(value, sent[name as keyof T]))
  return { ...base, ...Object.fromEntries(typed) }
}

function isSame(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other)
}

function clone<T>(value: T): T {
  return JSON.parse(JSON.stringify(value)) as T
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
