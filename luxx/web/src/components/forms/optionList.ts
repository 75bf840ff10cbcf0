/** A list of options that is steered from a text field: the active option, the keys, and the attributes for the field. */
import { computed, type ComputedRef, type Ref, ref, useId, watch } from 'vue'

export interface OptionGroup<T> {
  title: string
  options: readonly T[]
}

export interface OptionKeys<T> {
  groups: ComputedRef<readonly OptionGroup<T>[]>
  /** The options of all groups, in the order in which the keys go through them. */
  options: ComputedRef<readonly T[]>
  /** The position of the active option in `options`. */
  active: Ref<number>
  choose: (option: T) => void
  /** Scrolls to the active option. */
  show: () => void
  onKey: (event: KeyboardEvent) => void
  /** Attributes of the text field. */
  field: ComputedRef<object>
  listId: string
  optionId: (index: number) => string
}

/** Whether each of the typed words, in any order, is part of `text`. */
export function hasWords(text: string, typed: string): boolean {
  const searched = text.toLowerCase()
  return typed
    .toLowerCase()
    .split(/\s+/)
    .every((word) => searched.includes(word))
}

/** `typed`: what the text field holds; the first option becomes active when it changes. */
export function useOptionKeys<T>(
  typed: Readonly<Ref<string | null>>,
  groups: ComputedRef<readonly OptionGroup<T>[]>,
  choose: (option: T) => void,
): OptionKeys<T> {
  const id = useId()
  const active = ref(0)
  const options = computed(() => groups.value.flatMap((group) => group.options))
  watch(typed, () => {
    active.value = 0
  })

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

  const field = computed(() => ({
    role: 'combobox',
    'aria-expanded': true,
    'aria-autocomplete': 'list' as const,
    'aria-controls': `${id}-list`,
    'aria-activedescendant': options.value.length ? `${id}-${active.value}` : undefined,
  }))
  return { groups, options, active, choose, show, onKey, field, listId: `${id}-list`, optionId: (index) => `${id}-${index}` }
}
