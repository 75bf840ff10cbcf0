/** Learned patterns: the queries of the list, of one pattern and of its history. */
import { api, ask } from '@/api/client'
import { firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'

export type Pattern = Schema<'PatternView'>
export type PatternChange = Schema<'PatternChange'>
export const PATTERNS_KEY = ['patterns'] as const
export const STATUSES: readonly Pattern['status'][] = ['active', 'draft', 'untrusted', 'archived']
const PAGE_SIZE = 50

export function listPatterns(words: string, pages: number, status: Pattern['status'] | ''): Promise<{ items: Pattern[]; hasMore: boolean }> {
  const query = { page_size: PAGE_SIZE, ...(words ? { q: words } : {}), ...(status ? { status } : {}) }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/patterns', { params: { query: { ...query, page } } })))
}

export function readPattern(id: string): Promise<Pattern> {
  return ask(api.GET('/patterns/{pattern_id}', { params: { path: { pattern_id: id } } }))
}

export function historyOf(id: string): Promise<PatternChange[]> {
  return ask(api.GET('/patterns/{pattern_id}/history', { params: { path: { pattern_id: id } } }))
}

/** A step as the form has it: its tools in one field, separated by commas. */
export interface StepFields {
  description: string
  tools: string
  output: string
  decisions: string[]
}

export function fieldsOf(step: Pattern['steps'][number]): StepFields {
  return {
    description: step.description,
    tools: (step.tools ?? []).join(', '),
    output: step.expected_output ?? '',
    decisions: step.decision_points ?? [],
  }
}

export function stepOf(fields: StepFields): Pattern['steps'][number] {
  return {
    description: fields.description.trim(),
    tools: fields.tools
      .split(/[,\s]+/)
      .map((name) => name.trim())
      .filter(Boolean),
    expected_output: fields.output.trim(),
    decision_points: fields.decisions,
  }
}
