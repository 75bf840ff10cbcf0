/**
 * What this browser remembers: how the page looks, which panes are open, whether the rail has labels, which key sends, how
 * the reader is told of what waits, and what becomes of a message during an answer. The language is in `i18n/text.ts`.
 */
import { defineStore } from 'pinia'
import { computed, type Ref, ref, watch, watchEffect } from 'vue'

export const TEXT_SIZES = ['normal', 'large', 'larger'] as const
export const CONTRASTS = ['normal', 'high'] as const
export const MOTIONS = ['system', 'reduced'] as const
export const ENTERS = ['sends', 'line'] as const
const NOTICES = ['page', 'desktop'] as const
const SOUNDS = ['off', 'on'] as const

export type Theme = 'system' | 'light' | 'dark'

const THEME = 'luxx.theme'
const LIST = 'luxx.list'
const RAIL = 'luxx.rail'
const WHEN_BUSY = 'luxx.whenBusy'

/** A choice among `values`; the first one is not stored. */
function remembered<T extends string>(key: string, values: readonly [T, ...T[]]): Ref<T> {
  const stored = localStorage.getItem(key) as T
  const chosen = ref(values.includes(stored) ? stored : values[0]) as Ref<T>
  watch(chosen, (now) => (now === values[0] ? localStorage.removeItem(key) : localStorage.setItem(key, now)))
  return chosen
}

export const usePreferences = defineStore('preferences', () => {
  const stored = localStorage.getItem(THEME)
  const theme = ref<Theme>(stored === 'light' || stored === 'dark' ? stored : 'system')
  const isListOpen = ref(localStorage.getItem(LIST) !== 'closed')
  const isInspectorOpen = ref(false)
  /** What becomes of a message while an answer is made. */
  const whenBusy = ref<'queue' | 'steer'>(localStorage.getItem(WHEN_BUSY) === 'steer' ? 'steer' : 'queue')

  const darkSystem = window.matchMedia('(prefers-color-scheme: dark)')
  const isSystemDark = ref(darkSystem.matches)
  darkSystem.addEventListener('change', (event) => {
    isSystemDark.value = event.matches
  })
  const isDark = computed(() => (theme.value === 'system' ? isSystemDark.value : theme.value === 'dark'))

  // The names are also in `public/theme.js`, which sets the same before the first paint.
  const textSize = remembered('luxx.textSize', TEXT_SIZES)
  const contrast = remembered('luxx.contrast', CONTRASTS)
  const motion = remembered('luxx.motion', MOTIONS)
  const enter = remembered('luxx.enter', ENTERS)
  const notices = remembered('luxx.notices', NOTICES)
  const sound = remembered('luxx.sound', SOUNDS)

  watchEffect(() => {
    const { dataset } = document.documentElement
    dataset.theme = isDark.value ? 'dark' : 'light'
    dataset.text = textSize.value
    dataset.contrast = contrast.value
    dataset.motion = motion.value
  })

  /** Whether the key sends a message; with Ctrl or Command, Enter always does. */
  function isSendKey(event: KeyboardEvent): boolean {
    if (event.key !== 'Enter') return false
    return event.ctrlKey || event.metaKey || (enter.value === 'sends' && !event.shiftKey)
  }
  watch(theme, (chosen) => {
    if (chosen === 'system') localStorage.removeItem(THEME)
    else localStorage.setItem(THEME, chosen)
  })
  watch(isListOpen, (isOpen) => localStorage.setItem(LIST, isOpen ? 'open' : 'closed'))

  watch(whenBusy, (chosen) => localStorage.setItem(WHEN_BUSY, chosen))

  const narrow = window.matchMedia('(max-width: 44.99rem)')
  const isNarrow = ref(narrow.matches)
  narrow.addEventListener('change', (event) => {
    isNarrow.value = event.matches
  })

  const wide = window.matchMedia('(min-width: 80rem)')
  const isWide = ref(wide.matches)
  wide.addEventListener('change', (event) => {
    isWide.value = event.matches
  })
  const chosenRail = ref(localStorage.getItem(RAIL))
  /** Whether the areas in the rail have labels: without a choice, where the screen is wide. */
  const isRailOpen = computed({
    get: () => (chosenRail.value ? chosenRail.value === 'open' : isWide.value),
    set: (isOpen: boolean) => {
      chosenRail.value = isOpen ? 'open' : 'closed'
      localStorage.setItem(RAIL, chosenRail.value)
    },
  })

  return { textSize, contrast, motion, enter, notices, sound, isSendKey, isRailOpen, theme, isDark, isListOpen, whenBusy, isInspectorOpen, isNarrow }
})
