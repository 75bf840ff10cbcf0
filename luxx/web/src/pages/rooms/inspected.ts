/** The message whose input the inspector shows. */
import { ref } from 'vue'
import { usePreferences } from '@/stores/preferences'

export const inspected = ref<{ roomId: string; messageId: string } | null>(null)

export function inspect(roomId: string, messageId: string): void {
  inspected.value = { roomId, messageId }
  usePreferences().isInspectorOpen = true
}

export function closeInspector(): void {
  if (inspected.value) usePreferences().isInspectorOpen = false
  inspected.value = null
}
