/** The role of an agent as it is shown: that of an agent of Luxx in the language of the page. */
import type { Schema } from '@/api/types'
import { useServerText } from '@/i18n/en/server'

const server = useServerText()

export function roleOf({ role, is_shipped: isShipped }: Pick<Schema<'AgentView'>, 'role' | 'is_shipped'>): string {
  return isShipped ? server.translate(role) : role
}
