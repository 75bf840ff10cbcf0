/** Beginning a sign-in at an MCP server. The browser leaves for the page of the service, and comes back to `mcpAnswer.ts`. */
import { ApiError, api, ask } from './client'

const RETURN = 'luxx.mcp.return'
/**
 * Asks for the address of a sign-in and opens it in place of this page. Returns whether it does; otherwise none was
 * needed. `refused`: what is said where the address is no web address, as a hostile service could write.
 */
export async function signInAt(server: string, refused: string): Promise<boolean> {
  const found = await ask(api.POST('/mcp/servers/{name}/connect', { params: { path: { name: server } } }))
  const address = found.authorization_url
  if (!address) {
    if (found.status === 'ready') return false
    throw new ApiError(found.problem || refused, 0, 'not_ready')
  }
  if (!/^https?:\/\//i.test(address)) throw new ApiError(refused, 0, 'not_web')
  const { pathname, search } = window.location
  sessionStorage.setItem(RETURN, pathname.replace(/^\/ui/, '') + search)
  window.location.assign(address)
  return true
}

/** Where the sign-in was begun in this tab, as an address within the UI; empty: elsewhere. */
export function takeReturn(): string {
  const path = sessionStorage.getItem(RETURN) ?? ''
  sessionStorage.removeItem(RETURN)
  return path
}
