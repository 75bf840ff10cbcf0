/** The tenant of the signed-in person; operators also see all others. */
import { useQuery } from '@pinia/colada'
import { computed, type ComputedRef } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import { ADMIN_LEVEL, useSession } from '@/stores/session'

export type Tenant = Schema<'TenantView'>
export type User = Schema<'UserView'>
export type Level = Schema<'CommandPermission'>

export const LEVELS: readonly Level[] = [1, 2, 3, 4]

export interface Tenants {
  own: ReturnType<typeof useQuery<Tenant>>
  /** All tenants of an operator (the first hundred), else none. */
  all: ReturnType<typeof useQuery<Schema<'Page_TenantView'>>>
  /** An administrator of the default tenant: administers all tenants and the server. */
  isOperator: ComputedRef<boolean>
  nameOf: (tenantId: number) => string
}

export function useTenants(): Tenants {
  const session = useSession()
  const own = useQuery<Tenant>({ key: ['tenant'], query: () => ask(api.GET('/tenant')) })
  const isOperator = computed(() => session.user?.permission_level === ADMIN_LEVEL && own.data.value?.is_default === true)
  const all = useQuery<Schema<'Page_TenantView'>>({
    key: ['tenants'],
    enabled: () => isOperator.value,
    query: () => ask(api.GET('/admin/tenants', { params: { query: { page_size: 100 } } })),
  })
  function nameOf(tenantId: number): string {
    const known = [own.data.value, ...(all.data.value?.items ?? [])].find((tenant) => tenant?.id === tenantId)
    return known?.name ?? `#${tenantId}`
  }
  return { own, all, isOperator, nameOf }
}
