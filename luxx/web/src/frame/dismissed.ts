/** What waits and was dismissed: the same wait stays quiet, in every tab and after a reload. */
import { ref } from 'vue'

const KEY = 'luxx.dismissed'
const MAX_KEPT = 100

export const dismissed = ref<ReadonlySet<string>>(read())

window.addEventListener('storage', (event) => {
  if (event.key === KEY) dismissed.value = read()
})

/** A run that waits for something else later has another key. */
export function keyOf(run: { id: string; last_seq: number }): string {
  return `${run.id}:${run.last_seq}`
}

export function dismiss(key: string): void {
  dismissed.value = new Set([...read(), key].slice(-MAX_KEPT))
  localStorage.setItem(KEY, JSON.stringify([...dismissed.value]))
}

function read(): Set<string> {
  try {
    return new Set(JSON.parse(localStorage.getItem(KEY) ?? '[]') as string[])
  } catch {
    return new Set()
  }
}
