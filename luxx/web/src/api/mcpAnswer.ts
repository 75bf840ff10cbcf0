/**
 * What a service at which one signed in for an MCP server sent the browser back with, to `/ui/mcp/callback`: the query
 * with a code. It is taken off the address before anything else reads it, and is in the memory of this page only.
 */
const { pathname, search } = window.location
const isAnswer = search !== '' && pathname === '/ui/mcp/callback'
if (isAnswer) window.history.replaceState(null, '', pathname)

/** `query` is null without one, and once it was used: a code is good for one try, whatever comes of it. */
export const received = { query: isAnswer ? new URLSearchParams(search) : null }
