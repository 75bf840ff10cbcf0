/** Requests to the server: `await ask(api.GET('/conversations'))`. Raises ApiError with a sentence for a person. */
import createClient from 'openapi-fetch'
import { useServerText } from '@/i18n/en/server'
import { connection } from './connection'
import type { paths } from './schema'
import { accessToken, dropTokens } from './tokens'
import type { Schema } from './types'

const server = useServerText()

export class ApiError extends Error {
  /** `status` is 0 where the server could not be reached. */
  constructor(
    message: string,
    readonly status: number,
    readonly kind: string,
    readonly detail: Record<string, unknown> = {},
  ) {
    super(message)
  }

  /** A sentence about each wrong field of the body, by its path; `message` has them too. */
  get fields(): Record<string, string> {
    return Object.fromEntries(fieldsOf(this.detail).map(([path, why]) => [path, said(why)]))
  }
}

/** Sends a request as the signed-in user, and once more with new tokens where they have expired. */
export async function signedFetch(request: Request): Promise<Response> {
  const token = await accessToken()
  const again = request.clone()
  const response = await send(request, token)
  if (response.status !== 401 || token === null) return response
  const renewed = await accessToken(token)
  if (renewed === null) return response
  const second = await send(again, renewed)
  if (second.status === 401) dropTokens()
  return second
}

async function send(request: Request, token: string | null): Promise<Response> {
  if (token !== null) request.headers.set('authorization', `Bearer ${token}`)
  const response = await fetch(request)
  connection.reached()
  return response
}

export const api = createClient<paths>({
  baseUrl: window.location.origin,
  fetch: signedFetch,
  headers: { accept: 'application/json' },
})

interface Answered<T> {
  data?: { data?: T; success: true }
  error?: unknown
  response: Response
}

/** The data of a successful answer. */
export async function ask<T>(answered: Promise<Answered<T>>): Promise<T> {
  let answer: Answered<T>
  try {
    answer = await answered
  } catch (error) {
    throw asApiError(error)
  }
  if (answer.data !== undefined && answer.response.ok) return answer.data.data as T
  throw failure(answer.response.status, answer.error)
}

/** Starting and resuming answer with a stream, or with the run to those who accept JSON, as this client does. */
export function askForRun(answered: Promise<{ data?: unknown; error?: unknown; response: Response }>): Promise<Schema<'Run'>> {
  return ask(answered as Promise<Answered<Schema<'Run'>>>)
}

/** A failed response of a request that was sent with `signedFetch`. */
export async function failureOf(response: Response): Promise<ApiError> {
  return failure(response.status, await response.json().catch(() => null))
}

export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  connection.lost()
  return new ApiError(server.translate('The server cannot be reached.'), 0, 'unreachable')
}

function failure(status: number, body: unknown): ApiError {
  if (typeof body === 'object' && body !== null && 'error' in body) {
    const { error, detail } = body as { error: unknown; detail?: Record<string, unknown> }
    const kind = String(detail?.kind ?? '')
    return new ApiError(explained(String(error), kind, fieldsOf(detail)), status, kind, detail ?? {})
  }
  return new ApiError(server.translate(`The server answered with status ${status}.`), status, '')
}

const fieldsOf = (detail?: Record<string, unknown>): [string, string][] => Object.entries((detail?.fields ?? {}) as Record<string, string>)

/** Where the server lists wrong fields by their paths, a line for each, which begins with its name. */
function explained(error: string, kind: string, fields: [string, string][]): string {
  // It may say the first problem only, and how many there are.
  if (!fields.some(([path, why]) => error.includes(`${path}: ${why}`))) return said(error, kind)
  return fields
    .map(([path, why]) => {
      const name = /(\w+)(\[\d+\])*$/.exec(path)?.[1]?.replaceAll('_', ' ')
      return name ? sentence(`${name}: ${server.translate(why)}`) : said(why)
    })
    .join('\n')
}

/** In the reader's language where it is translated, otherwise as a sentence of the server. */
function said(text: string, kind?: string): string {
  const translated = server.translate(text, kind)
  return translated === text ? sentence(withoutApiNames(text)) : translated
}

/** Names of fields and routes, which the server gives in brackets to those who call its API. */
const API_NAMES = / \((?:null|[a-z]+(?:_[a-z]+)+|(?:GET|POST|PUT|DELETE) \/[^\s,()]*)\)/g

const withoutApiNames = (text: string): string => text.replace(API_NAMES, '')

/** The server's reasons begin in lower case, because they follow a name in its logs; names of files and tools stay. */
function sentence(text: string): string {
  const upper = /^[a-z]+(-[a-z]+)*(?=[\s,:;']|$)/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text
  return /[.!?。]$/.test(upper) ? upper : `${upper}.`
}
