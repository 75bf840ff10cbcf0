/** Whether a reader opened or closed a card: kept when a growing answer becomes a stored one, which draws it anew. */
import { computed, reactive, ref, type WritableComputedRef } from 'vue'

const kept = reactive(new Map<string, boolean>())

/** Null until the reader chooses. `place` names the card on all pages; '' keeps the choice with the component. */
export function useOpening(place: () => string): WritableComputedRef<boolean | null> {
  const own = ref<boolean | null>(null)
  return computed({
    get: () => (place() ? (kept.get(place()) ?? null) : own.value),
    set: (isOpen) => {
      if (place() && isOpen !== null) kept.set(place(), isOpen)
      else own.value = isOpen
    },
  })
}
