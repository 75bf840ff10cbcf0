/** Asks before a page with changes that are not saved is left: for another page, another item, or a reload. */
import { useEventListener } from '@vueuse/core'
import type { Ref } from 'vue'
import { onBeforeRouteLeave, onBeforeRouteUpdate } from 'vue-router'

export function useLeaveGuard(isChanged: Readonly<Ref<boolean>>, question: () => string): void {
  const mayLeave = (): boolean => !isChanged.value || window.confirm(question())
  onBeforeRouteLeave(mayLeave)
  onBeforeRouteUpdate(mayLeave)
  useEventListener(window, 'beforeunload', (event) => {
    if (isChanged.value) event.preventDefault()
  })
}
