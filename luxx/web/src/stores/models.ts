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
  const defaultProvider = computed(() => {
    const wanted = settings.data.value?.default_provider_id
    const own = enabled.value.filter((provider) => provider.is_own)
    return (
      enabled.value.find((provider) => provider.id === wanted) ??
      own.find((provider) => provider.is_default) ??
      enabled.value.find((provider) => provider.is_default) ??
      enabled.value[0] ??
      null
    )
  })

  /** Asks each provider for its models, once. */
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
    if (found) offered.value = { ...offered.value, [providerId]: found }
  }

  async function reload(): Promise<void> {
    offered.value = {}
    await Promise.all([providers.refetch(), settings.refetch()])
  }

  return { enabled, demo, isKnown, defaultProvider, offered, isLoading, loadOffered, loadModels, reload }
})
