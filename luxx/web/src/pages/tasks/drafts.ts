/** Steps while a person edits them, and what they are as the API takes them. */
import { useQuery } from '@pinia/colada'
import { computed } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import { nameOf } from '@/components/agentNames'
import { GONE } from '@/components/forms/modelSettings'
import { useCommonText } from '@/i18n/en/common'
import { useModels } from '@/stores/models'
import type { PlannedStep, TaskStepView } from './tasks'

export interface StepDraft {
  id: string
  name: string
  goal: string
  expectedOutput: string
  dependsOn: string[]
  /** The id of the agent as text; '' for that of the task, GONE for one that is gone. */
  agentId: string
  requireApproval: boolean
  /** What the plan or the stored step says besides. */
  tools: string[] | null
  skills: string[] | null
  thoughtPrompt: string | null
}

export function draftOf(step: PlannedStep | TaskStepView, fallbackId: string): StepDraft {
  return {
    id: step.id ?? fallbackId,
    name: step.name,
    goal: step.goal ?? '',
    expectedOutput: step.expected_output ?? '',
    dependsOn: [...(step.depends_on ?? [])],
    agentId: step.agent_id ? String(step.agent_id) : 'lost_agent' in step && step.lost_agent !== null ? GONE : '',
    requireApproval: step.require_approval ?? false,
    tools: step.required_tools ?? null,
    skills: step.required_skills ?? null,
    thoughtPrompt: step.thought_prompt ?? null,
  }
}

export function emptyDraft(id: string): StepDraft {
  return draftOf({ id, name: '' }, id)
}

/** The step as the API takes it, whole. */
export function stepOf(draft: StepDraft): PlannedStep & { id: string } {
  return {
    id: draft.id,
    name: draft.name.trim(),
    goal: draft.goal.trim(),
    depends_on: draft.dependsOn,
    ...(draft.agentId === GONE ? {} : { agent_id: draft.agentId ? Number(draft.agentId) : null }),
    required_tools: draft.tools,
    required_skills: draft.skills,
    expected_output: draft.expectedOutput.trim() || null,
    thought_prompt: draft.thoughtPrompt,
    require_approval: draft.requireApproval,
  }
}

/** The first id of the form s1, s2, … that none of them has. */
export function freeId(drafts: readonly { id: string }[]): string {
  const taken = new Set(drafts.map((draft) => draft.id))
  let number = drafts.length + 1
  while (taken.has(`s${number}`)) number += 1
  return `s${number}`
}

/** The agents that a task or a step can have, behind the choice of none. */
export function useAgentChoices(none: () => string) {
  const models = useModels()
  const common = useCommonText()
  const agents = useQuery({
    key: ['agents', 'choices'],
    query: () => ask(api.GET('/agents', { params: { query: { page_size: 100 } } })),
  })
  function labelOf(agent: Schema<'AgentView'>): string {
    const lost = models.lostProvider(agent)
    if (lost !== null) return `${nameOf(agent)} · ${common.lostProvider(lost)}`
    return agent.enabled ? nameOf(agent) : `${nameOf(agent)} · ${common.disabled}`
  }
  const choices = computed(() => [
    { value: '', label: none() },
    ...(agents.data.value?.items ?? []).map((agent) => ({ value: String(agent.id), label: labelOf(agent) })),
  ])
  return { choices, areKnown: computed(() => agents.data.value !== undefined) }
}
