/** Seats as forms change them, and what is sent for them. */
import type { Schema } from '@/api/types'
import { type AnswererDraft, answererBody, answererDraft } from '@/components/forms/modelSettings'
import type { Seat } from '../rooms'

export interface SeatDraft extends AnswererDraft {
  key: number
  agentId: number | null
  /** What the agent has: shown where the seat has nothing of its own. */
  agent: Partial<Record<'name' | 'role' | 'model' | 'systemPrompt', string>>
  name: string
  role: string
  systemPrompt: string
}

/** Above those of drafts from an earlier visit. */
let lastKey = Date.now()

export function emptySeat(name = ''): SeatDraft {
  return {
    key: ++lastKey,
    agentId: null,
    agent: {},
    name,
    role: '',
    systemPrompt: '',
    ...answererDraft(null),
  }
}

/** `role`: that of the agent as it is shown. */
export function seatOfAgent(agent: Schema<'AgentView'>, role: string): SeatDraft {
  const own = { name: agent.name, role, model: agent.model ?? '', systemPrompt: agent.system_prompt }
  return { ...emptySeat(agent.name), agentId: agent.id, agent: own }
}

/** The seat as its form begins: with an agent, only what is the seat's own. */
export function draftOf(seat: Seat): SeatDraft {
  const isOwn = (field: string): boolean => seat.agent_id === null || seat.overrides.includes(field)
  const text = (field: keyof Seat): string => (isOwn(field) && seat[field] !== null ? String(seat[field]) : '')
  return {
    ...emptySeat(seat.name),
    key: seat.id,
    agentId: seat.agent_id,
    agent: seat.agent_id === null ? {} : { role: seat.role, model: seat.model ?? '', systemPrompt: seat.system_prompt ?? '' },
    role: text('role'),
    systemPrompt: text('system_prompt'),
    ...answererDraft(seat, isOwn),
  }
}

/** All fields; null where the agent's value or the default counts. */
export function bodyOf(draft: SeatDraft): Schema<'NewSeat'> {
  return {
    agent_id: draft.agentId,
    name: draft.name.trim() || null,
    role: draft.role.trim() || null,
    system_prompt: draft.systemPrompt.trim() || null,
    ...answererBody(draft),
  }
}

/** The fields that the form changed. */
export function changesOf(before: SeatDraft, after: SeatDraft): Schema<'SeatChanges'> {
  const old = bodyOf(before)
  const changed = Object.entries(bodyOf(after)).filter(
    ([field, value]) => field !== 'agent_id' && JSON.stringify(value) !== JSON.stringify(old[field as keyof typeof old]),
  )
  return Object.fromEntries(changed) as Schema<'SeatChanges'>
}

/** A name that no other seat has, without regard to letter case. */
export function freeName(name: string, taken: readonly string[]): string {
  const others = new Set(taken.map((each) => each.toLowerCase()))
  if (!others.has(name.toLowerCase())) return name
  let number = 2
  while (others.has(`${name} ${number}`.toLowerCase())) number += 1
  return `${name} ${number}`
}
