/** Agents: the list, and one as its form changes it. */
import { api, ask } from '@/api/client'
import { sendDocument } from '@/api/files'
import { firstPages } from '@/api/lists'
import { useReload } from '@/api/queries'
import type { Schema } from '@/api/types'
import { nameOf, roleOf } from '@/components/agentNames'
import { type AnswererDraft, answererBody, answererDraft, numberIn } from '@/components/forms/modelSettings'

export type Agent = Schema<'AgentView'>
export const LIST_KEY = ['agents'] as const
const PAGE_SIZE = 100
export const MOST_FALLBACKS = 5
export const MOST_CHECKS = 10
export const MOST_TRIGGERS = 50

export interface Fallback {
  key: number
  provider: string
  model: string
}

/** `provider` and `model` are those of a judge; empty: those of the answer. */
export interface CheckDraft {
  key: number
  on: string
  by: Schema<'CheckBy'>
  criteria: string
  provider: string
  model: string
  rounds: '1' | '2'
}

export function newCheck(check: Schema<'Check'> = { on: 'answer' }): CheckDraft {
  const { on, by = 'facts', criteria = '', provider_id: provider, model } = check
  return { key: ++lastKey, on, by, criteria, provider: String(provider ?? ''), model: model ?? '', rounds: check.rounds === 2 ? '2' : '1' }
}

function checkOf({ on, by, criteria, provider, model, rounds }: CheckDraft): Schema<'Check'> {
  const judge = by === 'model' ? { provider_id: provider ? Number(provider) : null, model: model.trim() || null } : {}
  return { on: on.trim(), by, criteria, ...judge, rounds: Number(rounds) }
}

export interface TriggerDraft {
  key: number
  pattern: string
  weight: string
}

export function newTrigger({ pattern = '', weight = 1 }: Partial<Schema<'Trigger'>> = {}): TriggerDraft {
  return { key: ++lastKey, pattern, weight: String(weight) }
}

export interface AgentDraft extends AnswererDraft {
  name: string
  role: string
  systemPrompt: string
  color: string
  fallbacks: Fallback[]
  promptedThinking: boolean
  planning: NonNullable<Agent['planning']> | ''
  routing: NonNullable<Agent['routing']> | ''
  slidingWindow: string
  knowledge: readonly string[]
  /** Names; null: the tools say which tools of MCP servers it has. */
  mcpServers: readonly string[] | null
  memory: NonNullable<Agent['memory']>
  checks: CheckDraft[]
  displayName: string
  description: string
  triggerType: NonNullable<Agent['trigger_type']>
  triggers: TriggerDraft[]
  isShared: boolean
  /** The id of its project; empty: none. */
  project: string
}

/** Above those of drafts from an earlier visit. */
let lastKey = Date.now()

const COLORS = ['#2f6fde', '#0f8a6d', '#b4541a', '#8a3fb0', '#c2375b', '#4d7c0f', '#0e7490', '#a16207'] as const

/** The colour that the server gives to a new agent of this name: one of COLORS, by the CRC-32 of the name. */
export function colorOf(name: string): string {
  let sum = -1
  for (const byte of new TextEncoder().encode(name.trim())) {
    sum ^= byte
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0)
  }
  return COLORS[(~sum >>> 0) % COLORS.length] ?? COLORS[0]
}

export function newFallback(provider = '', model = ''): Fallback {
  return { key: ++lastKey, provider, model }
}

export function draftOf(agent: Agent | null): AgentDraft {
  return {
    name: agent?.name ?? '',
    role: agent ? roleOf(agent) : '',
    systemPrompt: agent?.system_prompt ?? '',
    ...answererDraft(agent),
    color: agent?.color ?? '',
    fallbacks: (agent?.fallbacks ?? []).map((each) => newFallback(String(each.provider_id), each.model ?? '')),
    checks: (agent?.checks ?? []).map((each) => newCheck(each)),
    promptedThinking: agent?.prompted_thinking ?? false,
    planning: agent?.planning ?? '',
    routing: agent?.routing ?? '',
    slidingWindow: String(agent?.sliding_window ?? ''),
    knowledge: agent?.knowledge ?? [],
    mcpServers: agent?.mcp_servers ?? null,
    memory: agent?.memory ?? 'on',
    displayName: agent?.display_name ?? '',
    description: agent?.description ?? '',
    triggerType: agent?.trigger_type ?? 'hybrid',
    triggers: (agent?.trigger_patterns ?? []).map((each) => newTrigger(each)),
    isShared: agent?.is_shared ?? false,
    project: agent?.project_id ?? '',
  }
}

export function bodyOf(draft: AgentDraft): Schema<'NewAgent'> {
  return {
    name: draft.name.trim(),
    role: draft.role.trim(),
    system_prompt: draft.systemPrompt,
    ...answererBody(draft),
    ...(draft.color ? { color: draft.color } : {}),
    fallbacks: draft.fallbacks
      .filter((each) => each.provider)
      .map((each) => ({ provider_id: Number(each.provider), model: each.model.trim() || null })),
    checks: draft.checks.map(checkOf),
    prompted_thinking: draft.promptedThinking,
    // A draft that an earlier version kept has none.
    planning: draft.planning || null,
    routing: draft.routing || null,
    sliding_window: numberIn(draft.slidingWindow ?? ''),
    knowledge: [...(draft.knowledge ?? [])],
    mcp_servers: draft.mcpServers ? [...draft.mcpServers] : null,
    memory: draft.memory,
    // A draft that an earlier version kept has none of these.
    display_name: (draft.displayName ?? '').trim(),
    description: (draft.description ?? '').trim(),
    trigger_type: draft.triggerType ?? 'hybrid',
    trigger_patterns: (draft.triggers ?? [])
      .filter((each) => each.pattern.trim())
      .map((each) => ({ pattern: each.pattern.trim(), weight: numberIn(each.weight) ?? 1 })),
    is_shared: draft.isShared,
    project_id: draft.project || null,
  }
}

/** The fields that the form changed. */
export function changesOf(before: AgentDraft, after: AgentDraft): Schema<'AgentChanges'> {
  const old = bodyOf(before)
  const changed = Object.entries(bodyOf(after)).filter(([field, value]) => JSON.stringify(value) !== JSON.stringify(old[field as keyof typeof old]))
  return Object.fromEntries(changed) as Schema<'AgentChanges'>
}

/** All agents that one may use, those whose name or role contains the words. */
export async function listAgents(words: string, pages: number): Promise<{ items: Agent[]; hasMore: boolean }> {
  const found = await firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/agents', { params: { query: { page, page_size: PAGE_SIZE } } })))
  const wanted = words.toLowerCase()
  return {
    ...found,
    items: found.items.filter((agent) => `${agent.name} ${nameOf(agent)} ${agent.role} ${roleOf(agent)}`.toLowerCase().includes(wanted)),
  }
}

export function importAgent(document: string, mediaType: string): Promise<Schema<'ImportedAgent'>> {
  return sendDocument('/agents/import', document, mediaType)
}

export function useAgentLists(): { reload: () => Promise<unknown> } {
  const reloadQueries = useReload()
  return { reload: () => reloadQueries(LIST_KEY) }
}
