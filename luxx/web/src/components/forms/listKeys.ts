/** The active option of a list that is steered from a text field: arrow keys, Enter, and the attributes for both. */
import { computed, type ComputedRef, ref, useId } from 'vue'

export function useListKeys<T>(options: ComputedRef<readonly T[]>, choose: (option: T) => void) {
  const id = useId()
  const active = ref(0)

  function show(): void {
    document.getElementById(`${id}-${active.value}`)?.scrollIntoView({ block: 'nearest' })
  }

  function move(by: number): void {
    const count = options.value.length
    if (count) active.value = (active.value + by + count) % count
    show()
  }

  function onKey(event: KeyboardEvent): void {
    if (event.key === 'ArrowDown') move(1)
    else if (event.key === 'ArrowUp') move(-1)
    else if (event.key === 'Enter') {
      const option = options.value[active.value]
      if (option !== undefined) choose(option)
    } else return
    event.preventDefault()
  }

  /** For the text field. */
  const field = computed(() => ({
    role: 'combobox',
    'aria-expanded': true,
    'aria-autocomplete': 'list' as const,
    'aria-controls': `${id}-list`,
    'aria-activedescendant': options.value.length ? `${id}-${active.value}` : undefined,
  }))
  return { active, show, onKey, field, listId: `${id}-list`, optionId: (index: number) => `${id}-${index}` }
}
