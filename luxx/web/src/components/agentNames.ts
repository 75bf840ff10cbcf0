/** The names and roles of agents as they are shown: a role of an agent of Luxx in the language of the page. */
import type { Schema } from '@/api/types'
import { useServerText } from '@/i18n/en/server'

const server = useServerText()

export function roleOf({ role, is_shipped: isShipped }: Pick<Schema<'AgentView'>, 'role' | 'is_shipped'>): string {
  return isShipped ? server.translate(role) : role
}

/** The name of an agent on the page. */
export function nameOf({ name, display_name: displayName }: Pick<Schema<'AgentView'>, 'name' | 'display_name'>): string {
  return displayName || name
}
