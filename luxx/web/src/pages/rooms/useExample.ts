/** Loads the example room and shows it. */
import { ref } from 'vue'
import { useRouter } from 'vue-router'
import { useRoomsText } from '@/i18n/en/rooms'
import { language } from '@/i18n/text'
import { useNotices } from '@/stores/notices'
import { EXAMPLES } from './example'
import { importRoom, useRoomLists } from './rooms'

export function useExample() {
  const text = useRoomsText()
  const router = useRouter()
  const notices = useNotices()
  const { reload } = useRoomLists()
  const isBusy = ref(false)

  async function load(): Promise<void> {
    isBusy.value = true
    try {
      const room = await importRoom(EXAMPLES[language.value])
      void reload()
      await router.push(`/rooms/${room.id}`)
      notices.show({ kind: 'info', text: text.exampleLoaded })
    } catch (error) {
      notices.showError(error)
    } finally {
      isBusy.value = false
    }
  }

  return { isBusy, load }
}
