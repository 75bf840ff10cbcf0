/** What this browser remembers: the theme, which panes are open, whether the rail has labels, and what becomes of a message during an answer. The language is in `i18n/text.ts`. */
import { defineStore } from 'pinia'
import { computed, ref, watch, watchEffect } from 'vue'

export type Theme = 'system' | 'light' | 'dark'

const THEME = 'luxx.theme'
const LIST = 'luxx.list'
const RAIL = 'luxx.rail'
const WHEN_BUSY = 'luxx.whenBusy'

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

  watchEffect(() => {
    document.documentElement.dataset.theme = isDark.value ? 'dark' : 'light'
  })
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

  return { isRailOpen, theme, isDark, isListOpen, whenBusy, isInspectorOpen, isNarrow }
})
