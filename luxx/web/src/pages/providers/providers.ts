/** The providers that one may use, and one as its form changes it. */
import { api, ask } from '@/api/client'
import { firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'
import { useProvidersText } from '@/i18n/en/providers'

export type Provider = Schema<'ProviderView'>
export const LIST_KEY = ['providers', 'list'] as const
const PAGE_SIZE = 100
const text = useProvidersText()

export function nameOfType({ provider_type: type }: Provider): string {
  return text.types[type] ?? type
}

export async function listProviders(words: string, pages: number): Promise<{ items: Provider[]; hasMore: boolean }> {
  const found = await firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/providers', { params: { query: { page, page_size: PAGE_SIZE } } })))
  const wanted = words.toLowerCase()
  const matches = (each: Provider): boolean =>
    `${each.name} ${each.provider_type} ${nameOfType(each)} ${each.default_model}`.toLowerCase().includes(wanted)
  return { ...found, items: found.items.filter(matches) }
}

export interface ProviderDraft {
  name: string
  baseUrl: string
  /** A new key; empty: the stored one stays. */
  key: string
  defaultModel: string
  maxTokens: string
  isDefault: boolean
  isShared: boolean
  isEnabled: boolean
}

export function draftOf(provider: Provider | null): ProviderDraft {
  return {
    name: provider?.name ?? '',
    baseUrl: provider?.base_url ?? '',
    key: '',
    defaultModel: provider?.default_model ?? '',
    maxTokens: provider?.max_tokens ? String(provider.max_tokens) : '',
    isDefault: provider?.is_default ?? false,
    isShared: provider?.is_shared ?? false,
    isEnabled: provider?.enabled ?? true,
  }
}

/** The fields that the form changed. */
export function changesOf(before: ProviderDraft, after: ProviderDraft): Schema<'ProviderChanges'> {
  const changes: Schema<'ProviderChanges'> = {}
  if (after.name.trim() !== before.name) changes.name = after.name.trim()
  if (after.baseUrl.trim() !== before.baseUrl) changes.base_url = after.baseUrl.trim()
  if (after.key.trim()) changes.api_key = after.key.trim()
  if (after.defaultModel.trim() !== before.defaultModel) changes.default_model = after.defaultModel.trim()
  if (String(after.maxTokens) !== before.maxTokens) changes.max_tokens = String(after.maxTokens).trim() ? Number(after.maxTokens) : null
  if (after.isDefault !== before.isDefault) changes.is_default = after.isDefault
  if (after.isShared !== before.isShared) changes.is_shared = after.isShared
  if (after.isEnabled !== before.isEnabled) changes.enabled = after.isEnabled
  return changes
}
