/**
 * Well-known public servers, by the addresses that their operators document. Nothing is loaded from one before a person
 * adds it.
 */

/** `signsIn`: how the server knows who calls; with a `token`, it is written into a header. */
export interface KnownServer {
  title: string
  name: string
  url: string
  signsIn: 'account' | 'none' | 'token'
}

export const KNOWN_SERVERS: readonly KnownServer[] = [
  { title: 'Atlassian', name: 'atlassian', url: 'https://mcp.atlassian.com/v1/mcp', signsIn: 'account' },
  { title: 'Cloudflare Docs', name: 'cloudflare-docs', url: 'https://docs.mcp.cloudflare.com/mcp', signsIn: 'none' },
  { title: 'Context7', name: 'context7', url: 'https://mcp.context7.com/mcp', signsIn: 'none' },
  { title: 'DeepWiki', name: 'deepwiki', url: 'https://mcp.deepwiki.com/mcp', signsIn: 'none' },
  { title: 'GitHub', name: 'github', url: 'https://api.githubcopilot.com/mcp/', signsIn: 'token' },
  { title: 'Hugging Face', name: 'hugging-face', url: 'https://huggingface.co/mcp', signsIn: 'none' },
  { title: 'Linear', name: 'linear', url: 'https://mcp.linear.app/mcp', signsIn: 'account' },
  { title: 'Microsoft Learn', name: 'microsoft-learn', url: 'https://learn.microsoft.com/api/mcp', signsIn: 'none' },
  { title: 'Notion', name: 'notion', url: 'https://mcp.notion.com/mcp', signsIn: 'account' },
  { title: 'Sentry', name: 'sentry', url: 'https://mcp.sentry.dev/mcp', signsIn: 'account' },
  { title: 'Stripe', name: 'stripe', url: 'https://mcp.stripe.com', signsIn: 'account' },
  { title: 'Supabase', name: 'supabase', url: 'https://mcp.supabase.com/mcp', signsIn: 'account' },
]
