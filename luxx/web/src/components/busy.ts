/** One change after the other: which one is under way, and a failure, shown as a notice or beside what it is about. */
import { type Ref, ref } from 'vue'
import type { Problem } from '@/components/problem/useProblem'
import { useNotices } from '@/stores/notices'

export interface Busy {
  /** The name of the change under way, or an empty string. */
  busy: Ref<string>
  /**
   * Returns whether the work succeeded. What is asked for during another change is done after it; the same one a second
   * time, as by a double click, is not.
   */
  run: (name: string, work: () => Promise<unknown>) => Promise<boolean>
}

/** `beside`: where a failure is said, as long as no dialog covers it. */
export function useBusy(afterwards: () => unknown = () => undefined, beside?: Problem): Busy {
  const notices = useNotices()
  const busy = ref('')
  const names: string[] = []
  let last: Promise<unknown> = Promise.resolve()

  async function run(name: string, work: () => Promise<unknown>): Promise<boolean> {
    if (names.includes(name)) return false
    names.push(name)
    const mine = last.then(() => carryOut(name, work))
    last = mine
    return mine
  }

  async function carryOut(name: string, work: () => Promise<unknown>): Promise<boolean> {
    busy.value = name
    beside?.forget()
    try {
      await work()
      return true
    } catch (error) {
      if (beside && !notices.hasDialog()) beside.say(error)
      else notices.showError(error)
      return false
    } finally {
      names.splice(names.indexOf(name), 1)
      busy.value = ''
      void afterwards()
    }
  }

  return { busy, run }
}
