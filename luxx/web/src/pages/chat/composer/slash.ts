/** What a composer offers for `/` at its beginning, and for `@` (agents) and `#` (files of the workspace) anywhere. */
import { useQuery } from '@pinia/colada'
import { computed, type Ref, ref, watch } from 'vue'
import { api, ask } from '@/api/client'
import { listSkills } from '@/api/lists'
import type { Schema } from '@/api/types'
import { nameOf, roleOf } from '@/components/agentNames'
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
  agent?: Schema<'AgentView'>
  /** A folder is opened, a file attached. */
  file?: Schema<'FileView'>
}

/** The word before the caret that is completed. */
interface Token {
  mark: '/' | '@' | '#'
  part: string
  start: number
}

/** `caret`: its position in the text. `agents`: those that can be chosen. `offered`: the commands that can be carried out now. `projectId`: that of the conversation. */
export function useSlash(
  typed: Ref<string>,
  caret: () => number,
  agents: () => readonly Schema<'AgentView'>[],
  offered: () => readonly SlashCommand[],
  choose: (option: SlashOption) => void,
  projectId: () => string | null,
) {
  const text = usePromptsText()
  const isDismissed = ref(false)
  const token = computed<Token | null>(() => {
    const command = /^\/(\S*)$/u.exec(typed.value)?.[1]
    if (command !== undefined) return { mark: '/', part: command.toLowerCase(), start: 0 }
    const found = /(?:^|\s)([@#])(\S*)$/u.exec(typed.value.slice(0, caret()))
    const part = found?.[2] ?? ''
    return found ? { mark: found[1] as '@' | '#', part: part.toLowerCase(), start: caret() - part.length - 1 } : null
  })
  const words = computed(() => (token.value?.mark === '/' ? token.value.part : null))
  const state = computed(() => (token.value ? token.value.mark + token.value.part : null))
  const folder = computed(() => (token.value?.mark === '#' ? token.value.part.replace(/[^/]*$/, '').replace(/\/$/, '') : null))
  const files = useQuery({
    key: () => ['files', 'completion', folder.value ?? ''],
    enabled: () => folder.value !== null,
    query: () => ask(api.GET('/files', { params: { query: { page_size: 100, ...(folder.value ? { path: folder.value } : {}) } } })),
  })
  const prompts = useQuery({ key: [...PROMPTS_KEY, 'all'], enabled: () => words.value !== null, query: listAllPrompts })
  const skills = useQuery({
    key: () => ['skills', 'whole', projectId() ?? ''],
    enabled: () => words.value !== null,
    query: () => listSkills(projectId()),
  })

  const options = computed<SlashOption[]>(() => {
    if (isDismissed.value || !token.value) return []
    const { mark, part } = token.value
    if (mark === '@') return agentOptions(part)
    if (mark === '#') return fileOptions(part)
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
  function agentOptions(part: string): SlashOption[] {
    const all = agents().map((agent) => ({ name: nameOf(agent), about: roleOf(agent) ?? '', agent }))
    return all.filter(({ name }) => name.toLowerCase().includes(part)).slice(0, 100)
  }

  function fileOptions(part: string): SlashOption[] {
    const found = files.data.value?.items ?? []
    return found
      .filter(({ path }) => path.toLowerCase().includes(part))
      .map((file) => ({ name: file.path + (file.is_folder ? '/' : ''), about: '', file }))
  }

  /** The text without the word that was completed, or with another one. */
  function replaced(by = ''): { text: string; caret: number } {
    const start = token.value?.start ?? 0
    const rest = typed.value.slice(caret())
    const before = typed.value.slice(0, start) + by
    return { text: before + (by ? rest : rest.replace(/^ /, '')), caret: before.length }
  }

  const keys = useOptionKeys(
    state,
    computed(() => [{ title: '', options: options.value }]),
    choose,
  )

  watch(state, (now, before) => {
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

  return { keys, onKey, replaced }
}
