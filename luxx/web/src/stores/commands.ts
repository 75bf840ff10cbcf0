/** The commands of the palette: a page adds its own while it is shown. */
import { defineStore } from 'pinia'
import { onScopeDispose, ref, shallowRef } from 'vue'

export interface Command {
  id: string
  label: string
  /** Words that find it besides its label. */
  keywords?: string
  shortcut?: string
  run(): void
}

export const useCommands = defineStore('commands', () => {
  const isOpen = ref(false)
  const groups = shallowRef<(() => Command[])[]>([])

  /** Adds commands until the component that calls this is gone; they are read when the palette opens. */
  function add(commands: () => Command[]): void {
    groups.value = [...groups.value, commands]
    onScopeDispose(() => {
      groups.value = groups.value.filter((group) => group !== commands)
    })
  }

  return { isOpen, groups, add }
})
