/** The title of the browser's tab: what the page shows, and how much waits for the reader. */
import { onScopeDispose, shallowRef, watchEffect } from 'vue'
import { waits } from './waits'

const NAME = 'Luxx'
const shown = shallowRef<(() => string) | null>(null)

/** What the page shows, such as the title of a chat, while the component that calls this is there. */
export function usePageTitle(title: () => string): void {
  shown.value = title
  onScopeDispose(() => {
    // The next page may have set its own by then.
    if (shown.value === title) shown.value = null
  })
}

/** Writes the title; `area` is the name of the area, for pages that set none. */
export function followPageTitle(area: () => string): void {
  watchEffect(() => {
    const parts = [shown.value?.() || area(), NAME].filter(Boolean)
    document.title = (waits.value.length ? `(${waits.value.length}) ` : '') + parts.join(' · ')
  })
  onScopeDispose(() => (document.title = NAME))
}
