/**
 * Keys that an input method uses (to choose a character, to end or drop a composition) belong to it alone: no field,
 * form, list or dialog of the page sees them.
 */
import { useEventListener } from '@vueuse/core'

/** Called once, by the root of the page. */
export function useInputMethod(): void {
  useEventListener(
    window,
    'keydown',
    (event) => {
      // Safari ends the composition before it sends the key; only the key code 229 says then whose key it is.
      if (!event.isComposing && event.keyCode !== 229) return
      event.stopImmediatePropagation()
      if (event.key === 'Enter') event.preventDefault() // It sends no form either.
    },
    { capture: true },
  )
}
