/** One change at a time: which one is under way, and a failure shown as a notice. */
import { type Ref, ref } from 'vue'
import { useNotices } from '@/stores/notices'

export interface Busy {
  /** The name of the change under way, or an empty string. */
  busy: Ref<string>
  /** Returns whether the work succeeded; does nothing while another change is under way. */
  run: (name: string, work: () => Promise<unknown>) => Promise<boolean>
}

export function useBusy(afterwards: () => unknown = () => undefined): Busy {
  const notices = useNotices()
  const busy = ref('')
  async function run(name: string, work: () => Promise<unknown>): Promise<boolean> {
    if (busy.value) return false
    busy.value = name
    try {
      await work()
      return true
    } catch (error) {
      notices.showError(error)
      return false
    } finally {
      busy.value = ''
      void afterwards()
    }
  }
  return { busy, run }
}
