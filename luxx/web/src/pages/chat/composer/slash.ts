/** Slash commands: what a composer that begins with `/` offers. */
import { useQuery } from '@pinia/colada'
import { computed, type Ref, ref, watch } from 'vue'
import { listSkills } from '@/api/lists'
import { useOptionKeys } from '@/components/forms/optionList'
import { isUsable } from '@/components/skillStates'
import { usePromptsText } from '@/i18n/en/prompts'
import { listAllPrompts, type Prompt, PROMPTS_KEY } from '@/stores/prompts'

export const COMMANDS = ['new', 'model', 'agent', 'tools', 'todos', 'compress', 'fork', 'export', 'stop'] as const
export type SlashCommand = (typeof COMMANDS)[number]

export interface SlashOption {
  name: string
  about: string
  command?: SlashCommand
  prompt?: Prompt
  /** The name of a skill that the next message activates. */
  skill?: string
}

/** `offered`: the commands that can be carried out now. `projectId`: that of the conversation. */
export function useSlash(
  typed: Ref<string>,
  offered: () => readonly SlashCommand[],
  choose: (option: SlashOption) => void,
  projectId: () => string | null,
) {
  const text = usePromptsText()
  const isDismissed = ref(false)
  const words = computed(() => /^\/(\S*)$/u.exec(typed.value)?.[1]?.toLowerCase() ?? null)
  const prompts = useQuery({ key: [...PROMPTS_KEY, 'all'], enabled: () => words.value !== null, query: listAllPrompts })
  const skills = useQuery({
    key: () => ['skills', 'whole', projectId() ?? ''],
    enabled: () => words.value !== null,
    query: () => listSkills(projectId()),
  })

  const options = computed<SlashOption[]>(() => {
    const part = words.value
    if (part === null || isDismissed.value) return []
    const commands = offered().map((name) => ({ name, about: text.about[name], command: name }))
    const own: SlashOption[] = (prompts.data.value ?? []).map((prompt) => ({ name: prompt.name, about: prompt.title || prompt.description, prompt }))
    const usable = (skills.data.value ?? []).filter(isUsable)
    own.push(...usable.map(({ name, description }) => ({ name, about: description ?? '', skill: name })))
    const isNamed = ({ name }: SlashOption): boolean => name.startsWith(part)
    const matching = [
      ...commands.filter(isNamed),
      // Enter takes the first one: those whose name begins so stand before those that only contain it.
      ...own.filter(isNamed),
      ...own.filter((each) => !isNamed(each) && (each.name.includes(part) || each.about.toLowerCase().includes(part))),
    ]
    return matching.slice(0, 100)
  })
  const keys = useOptionKeys(
    words,
    computed(() => [{ title: '', options: options.value }]),
    choose,
  )

  watch(words, (now, before) => {
    if (now === null || before === null) isDismissed.value = false
  })

  /** Whether the list took the key. */
  function onKey(event: KeyboardEvent): boolean {
    if (keys.options.value.length === 0) return false
    if (event.key === 'Escape') isDismissed.value = true
    else if (event.key === 'Tab' && !event.shiftKey) {
      const option = keys.options.value[keys.active.value]
      if (option) choose(option)
    } else if (['ArrowDown', 'ArrowUp', 'Enter'].includes(event.key) && !event.shiftKey) keys.onKey(event)
    else return false
    event.preventDefault()
    return true
  }

  return { keys, onKey }
}
