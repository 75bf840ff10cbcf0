/** A server as its form writes it, and what of it is sent. Texts of several lines have one item on each. */
import type { Schema } from '@/api/types'
import { linesOf, pairsOf, type Transport, transportFrom } from './serverFields'
import type { McpServer } from './servers'

export interface ServerDraft {
  how: 'remote' | 'stdio'
  url: string
  /** The program, then its arguments. */
  command: string
  reads: string
  env: string
  headers: string
  /** Deletes the variables or headers that are stored. */
  dropsStored: boolean
  name: string
  scope: McpServer['scope']
  identity: McpServer['credential'] | 'auto'
  projectId: string
  /** Empty: after the address. */
  transport: Transport | ''
  /** Empty: that of the server. */
  level: string
  isTrusted: boolean
  clientId: string
  clientSecret: string
  scopes: string
}

export const SECRETS = ['env', 'headers', 'clientSecret'] as const satisfies readonly (keyof ServerDraft)[]

export function draftOf(server: McpServer | null): ServerDraft {
  return {
    how: server?.transport === 'stdio' ? 'stdio' : 'remote',
    url: server?.url ?? '',
    command: server ? [server.command, ...server.args].join('\n').trim() : '',
    reads: server?.reads.join('\n') ?? '',
    env: '',
    headers: '',
    dropsStored: false,
    name: server?.name ?? '',
    scope: server?.scope ?? 'user',
    identity: server?.credential ?? 'auto',
    projectId: server?.project_id ?? '',
    transport: server?.transport ?? '',
    level: server ? String(server.level) : '',
    isTrusted: server?.trusted ?? false,
    clientId: server?.oauth?.client_id ?? '',
    clientSecret: '',
    scopes: server?.oauth?.scopes?.join(' ') ?? '',
  }
}

/** Raises WrongLine. */
export function bodyOf(draft: ServerDraft): Schema<'NewMcpServer'> {
  const isProgram = draft.how === 'stdio'
  return {
    name: draft.name.trim(),
    transport: isProgram ? 'stdio' : draft.transport || transportFrom(draft.url),
    scope: isProgram ? 'tenant' : draft.scope,
    ...(isProgram ? programOf(draft) : serviceOf(draft)),
    ...(draft.projectId && draft.scope === 'user' ? { project_id: draft.projectId } : {}),
    ...(draft.level ? { level: Number(draft.level) } : {}),
    trusted: draft.isTrusted,
  }
}

function programOf({ command, reads, env }: ServerDraft) {
  const [program = '', ...args] = linesOf(command)
  return { command: program, args, reads: linesOf(reads), env: pairsOf(env, '=') }
}

function serviceOf(draft: ServerDraft) {
  const oauth = clientOf(draft)
  return {
    url: draft.url.trim(),
    headers: pairsOf(draft.headers, ':'),
    credential: draft.identity === 'auto' ? ('none' as const) : draft.identity,
    ...(oauth ? { oauth } : {}),
  }
}

function clientOf({ clientId, clientSecret, scopes }: ServerDraft): Schema<'OAuthClient'> | null {
  if (!clientId.trim()) return null
  const wanted = scopes.split(/\s+/).filter(Boolean)
  return {
    client_id: clientId.trim(),
    ...(clientSecret.trim() ? { client_secret: clientSecret.trim() } : {}),
    ...(wanted.length ? { scopes: wanted } : {}),
  }
}

/** What differs from `saved`. Raises WrongLine. */
export function changesOf(saved: ServerDraft, draft: ServerDraft): Schema<'McpServerChanges'> {
  const differs = (...names: (keyof ServerDraft)[]): boolean => names.some((name) => draft[name] !== saved[name])
  const { command, args, reads, env } = programOf(draft)
  return {
    ...(differs('name') ? { name: draft.name.trim() } : {}),
    ...(differs('url') ? { url: draft.url.trim() } : {}),
    ...(differs('command') ? { command, args } : {}),
    ...(differs('reads') ? { reads } : {}),
    ...(draft.how === 'stdio' && differs('env', 'dropsStored') ? { env } : {}),
    ...(draft.how === 'remote' && differs('headers', 'dropsStored') ? { headers: pairsOf(draft.headers, ':') } : {}),
    ...(differs('identity') && draft.identity !== 'auto' ? { credential: draft.identity } : {}),
    ...(differs('clientId', 'clientSecret', 'scopes') ? { oauth: clientOf(draft) } : {}),
    ...(differs('projectId') ? { project_id: draft.projectId || null } : {}),
    ...(differs('isTrusted') ? { trusted: draft.isTrusted } : {}),
    ...(differs('level') && draft.level ? { level: Number(draft.level) } : {}),
  }
}
