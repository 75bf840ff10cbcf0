/** What a form changes of a tenant. */
import type { Schema } from '@/api/types'
import type { Tenant } from '@/stores/tenants'

export interface TenantDraft {
  name: string
  isRegistrationOpen: boolean
  hasOwnProviders: boolean
  agentId: string
  providerId: string
  extraction: 'on' | 'off'
  learnsPatterns: boolean
  hasPublicLinks: boolean
  titleProviderId: string
  titleModel: string
}

export function draftOf(tenant: Tenant | null): TenantDraft {
  return {
    name: tenant?.name ?? '',
    isRegistrationOpen: tenant?.allow_registration ?? false,
    hasOwnProviders: tenant?.allow_own_providers ?? true,
    agentId: tenant?.default_agent_id ? String(tenant.default_agent_id) : '',
    // The id stays while a lost one exists: it is valid when it is shared again.
    providerId: tenant?.default_provider_id && tenant.lost_default_provider === null ? String(tenant.default_provider_id) : '',
    extraction: tenant?.extraction ?? 'off',
    learnsPatterns: tenant?.learn_patterns ?? false,
    hasPublicLinks: tenant?.public_links ?? false,
    titleProviderId: tenant?.title_provider_id && tenant.lost_title_provider === null ? String(tenant.title_provider_id) : '',
    titleModel: tenant?.title_model ?? '',
  }
}

/** Only what differs from the tenant. */
export function changesOf(tenant: Tenant, draft: TenantDraft): Schema<'TenantBody'> {
  const before = draftOf(tenant)
  const name = draft.name.trim()
  return {
    ...(name === before.name ? {} : { name }),
    ...(draft.isRegistrationOpen === before.isRegistrationOpen ? {} : { allow_registration: draft.isRegistrationOpen }),
    ...(draft.hasOwnProviders === before.hasOwnProviders ? {} : { allow_own_providers: draft.hasOwnProviders }),
    ...(draft.agentId === before.agentId ? {} : { default_agent_id: idOf(draft.agentId) }),
    ...(draft.providerId === before.providerId ? {} : { default_provider_id: idOf(draft.providerId) }),
    ...(draft.extraction === before.extraction ? {} : { extraction: draft.extraction }),
    ...(draft.learnsPatterns === before.learnsPatterns ? {} : { learn_patterns: draft.learnsPatterns }),
    ...(draft.hasPublicLinks === before.hasPublicLinks ? {} : { public_links: draft.hasPublicLinks }),
    ...(draft.titleProviderId === before.titleProviderId && draft.titleModel === before.titleModel
      ? {}
      : { title_provider_id: idOf(draft.titleProviderId), title_model: draft.titleModel.trim() || null }),
  }
}

function idOf(choice: string): number | null {
  return choice === '' ? null : Number(choice)
}
