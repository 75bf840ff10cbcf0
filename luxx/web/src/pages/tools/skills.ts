/** Skills: their lists over all layers, how requests match them, and how they are added. */
import { useQuery } from '@pinia/colada'
import { computed, ref, watch } from 'vue'
import { api, ask } from '@/api/client'
import { sendDocument } from '@/api/files'
import { allPages, listSkills } from '@/api/lists'
import type { Schema } from '@/api/types'
import type { Skill } from '@/components/skillStates'
import { useSkillsText } from '@/i18n/en/skills'
import { ADMIN_LEVEL, useSession } from '@/stores/session'

type Items = Schema<'MatchedItems'>
/** Skills and agents with their scores, the best first. */
export type Matched = Omit<Items, 'matches'> & { matches: (Items['matches'][number] & { kind: 'skill' | 'agent' })[] }
export const SKILLS_KEY = ['skills'] as const

export const pathOf = (skillId: string) => ({ path: { skill_id: skillId } })

/** Those of the system and the tenant, then those of all projects of the user. */
export async function listAllSkills(): Promise<Skill[]> {
  const ofProjects = (page: number) => ask(api.GET('/skills', { params: { query: { scope: 'project', page, page_size: 100 } } }))
  const [all, projects] = await Promise.all([listSkills(), allPages(ofProjects)])
  return [...projects, ...all.filter((skill) => skill.scope === 'tenant'), ...all.filter((skill) => skill.scope === 'system')]
}

/** What a request is matched with where skills of `place` count too. */
export async function matchRequest(text: string, place: string): Promise<Matched> {
  const [skills, agents] = await Promise.all([
    ask(api.POST('/skills/match', { body: { text, project_id: projectOf(place) } })),
    ask(api.POST('/agents/match', { body: { text } })),
  ])
  const both = [
    ...skills.matches.map((each) => ({ ...each, kind: 'skill' as const })),
    ...agents.matches.map((each) => ({ ...each, kind: 'agent' as const })),
  ]
  return { ...skills, matches: both.toSorted((one, other) => other.score - one.score) }
}

function projectOf(place: string): string | null {
  return place.startsWith('project:') ? place.slice('project:'.length) : null
}

/** Where the user may add skills, as `tenant` or `project:ID`, and the place that is chosen. */
export function usePlaces(wanted = '') {
  const text = useSkillsText()
  const session = useSession()
  const isAdmin = computed(() => session.user?.permission_level === ADMIN_LEVEL)
  const projects = useQuery({
    key: ['projects', 'whole'],
    query: () => allPages((page) => ask(api.GET('/projects', { params: { query: { page, page_size: 100 } } }))),
  })
  const places = computed(() => [
    ...(projects.data.value ?? []).map(({ id, name }) => ({ value: `project:${id}`, label: text.places.project(name) })),
    ...(isAdmin.value ? [{ value: 'tenant', label: text.places.tenant }] : []),
  ])
  const isLoaded = computed(() => projects.data.value !== undefined && session.user !== null)
  const place = ref(wanted)
  watch(
    [places, isLoaded],
    () => {
      if (isLoaded.value && !places.value.some(({ value }) => value === place.value)) place.value = places.value[0]?.value ?? ''
    },
    { immediate: true },
  )
  return { places, place, isAdmin, isLoaded }
}

/** Adds a skill of these bytes, a SKILL.md or a ZIP file, to a place of `usePlaces`. */
export function addSkill(content: Blob, place: string): Promise<Skill> {
  const projectId = projectOf(place)
  const form = new FormData()
  form.append('scope', projectId ? 'project' : place)
  if (projectId) form.append('project_id', projectId)
  form.append('file', content, 'skill')
  return sendDocument('/skills/upload', form)
}

/** Replaces the SKILL.md of a skill. */
export function saveText(skillId: string, content: string): Promise<Skill> {
  return sendDocument(`/skills/${skillId}/content`, content, 'text/markdown', 'PUT')
}
