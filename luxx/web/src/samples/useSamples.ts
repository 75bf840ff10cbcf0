/** Creates a sample in the reader's language with the demo provider and opens it. `isOffered`: the server has that provider. */
import { computed, ref } from 'vue'
import { useRouter } from 'vue-router'
import { sendDocument } from '@/api/files'
import { useReload } from '@/api/queries'
import { language } from '@/i18n/text'
import { useModels } from '@/stores/models'
import { useNotices } from '@/stores/notices'

type Samples = typeof import('@/i18n/en/chat/samples')
const files = import.meta.glob<Samples>('../i18n/*/chat/samples.ts')

export function useSamples() {
  const models = useModels()
  const router = useRouter()
  const notices = useNotices()
  const reloadQueries = useReload()
  const isBusy = ref(false)
  const isOffered = computed(() => models.demo !== null)

  async function open(area: 'rooms' | 'tasks'): Promise<void> {
    const provider = models.demo?.name
    if (provider === undefined) return
    isBusy.value = true
    try {
      const load = files[`../i18n/${language.value}/chat/samples.ts`] ?? files['../i18n/en/chat/samples.ts']
      if (!load) return
      const { sampleRoom, sampleTask } = await load()
      const [path, document] = area === 'rooms' ? ['/chat-rooms/import', sampleRoom(provider)] : ['/tasks/import', sampleTask(provider)]
      const created = await sendDocument<{ id: string }>(path as string, JSON.stringify(document), 'application/json')
      void reloadQueries([area])
      await router.push(`/${area}/${created.id}`)
    } catch (error) {
      notices.showError(error)
    } finally {
      isBusy.value = false
    }
  }

  return { isBusy, isOffered, openRoom: () => open('rooms'), openTask: () => open('tasks') }
}
