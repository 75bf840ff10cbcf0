/** The providers that one may use, and the models that they offer. */
import { useQuery } from '@pinia/colada'
import { defineStore } from 'pinia'
import { computed, ref } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'

export type Provider = Schema<'ProviderView'>

export const useModels = defineStore('models', () => {
  const providers = useQuery({
    key: ['providers'],
    query: () => ask(api.GET('/providers', { params: { query: { page_size: 100 } } })),
  })
  const settings = useQuery({ key: ['settings'], query: () => ask(api.GET('/settings')) })
  const offered = ref<Record<number, Schema<'UpstreamModels'>>>({})
  const isLoading = ref(false)

  const usable = computed<Provider[]>(() => (providers.data.value?.items ?? []).filter((provider) => provider.enabled))
  const enabled = computed(() => usable.value.filter((provider) => provider.provider_type !== 'demo'))
  /** The provider of the samples, where the server has it; nothing else offers it. */
  const demo = computed(() => usable.value.find((provider) => provider.provider_type === 'demo') ?? null)
  const isKnown = computed(() => providers.data.value !== undefined)
  /** The name of the default that was deleted or disabled, or that is no longer shared; null: it is there. */
  const lostDefault = computed<string | null>(() => {
    const wanted = settings.data.value?.default_provider_id ?? null
    if (wanted === null) return settings.data.value?.lost_default_provider ?? null
    if (!isKnown.value || enabled.value.some((provider) => provider.id === wanted)) return null
    return nameOf(wanted) || (settings.data.value?.lost_default_provider ?? '')
  })
  const nameOf = (id: number): string => providers.data.value?.items.find((provider) => provider.id === id)?.name ?? ''
  function namesProvider(chosen: { provider_id?: number | null; lost_provider?: string | null }): boolean {
    return chosen.provider_id != null || Boolean(chosen.lost_provider)
  }
  /** The name of the provider that something has chosen and that cannot be used any more; null: it can. */
  function lostProvider(chosen: { provider_id?: number | null; lost_provider?: string | null } | null): string | null {
    const id = chosen?.provider_id ?? null
    if (id === null) return chosen?.lost_provider ?? null
    if (!isKnown.value || usable.value.some((provider) => provider.id === id)) return null
    return nameOf(id) || (chosen?.lost_provider ?? '')
  }
  const defaultProvider = computed(() => {
    if (lostDefault.value !== null) return null
    const wanted = settings.data.value?.default_provider_id
    const own = enabled.value.filter((provider) => provider.is_own)
    return (
      enabled.value.find((provider) => provider.id === wanted) ??
      own.find((provider) => provider.is_default) ??
      enabled.value.find((provider) => provider.is_tenant_default) ??
      enabled.value[0] ??
      null
    )
  })

  /** Asks each provider for its models that can chat, once. */
  async function loadOffered(): Promise<void> {
    isLoading.value = true
    try {
      await Promise.all(enabled.value.map((provider) => loadModels(provider.id)))
    } finally {
      isLoading.value = false
    }
  }

  async function loadModels(providerId: number): Promise<void> {
    if (offered.value[providerId]) return
    const params = { path: { provider_id: providerId } }
    const found = await ask(api.GET('/providers/{provider_id}/models', { params })).catch(() => null)
    if (!found) return
    const cards = found.cards.filter((card) => card.chat)
    offered.value = { ...offered.value, [providerId]: { ...found, cards, models: cards.map((card) => card.name) } }
  }

  async function reload(): Promise<void> {
    offered.value = {}
    await Promise.all([providers.refetch(), settings.refetch()])
  }

  return { enabled, demo, isKnown, defaultProvider, lostDefault, namesProvider, lostProvider, offered, isLoading, loadOffered, loadModels, reload }
})
