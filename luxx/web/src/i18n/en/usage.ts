import { defineText, type Texts } from '../text'

const en = {
  title: 'Usage',
  period: 'Period',
  lastDays: (days: number) => `Last ${days} days`,
  groupBy: 'Group by',
  groups: { day: 'Day', model: 'Model', provider: 'Provider', conversation: 'Chat', room: 'Room', task: 'Task', user: 'Person', tenant: 'Tenant' },
  show: 'Chart',
  measures: { tokens: 'Tokens', cost: 'Cost' },
  scope: 'Of whom',
  scopes: { own: 'Mine', tenant: 'My tenant', all: 'The whole server' },
  calls: 'Model calls',
  tokens: 'Tokens',
  prompt: 'Read',
  cached: 'From the cache',
  completion: 'Written',
  cost: 'Cost',
  unknown: 'unknown',
  atLeast: (cost: string) => `at least ${cost}`,
  deleted: 'Deleted',
  chartLabel: (measure: string, group: string) => `${measure} by ${group}; the table below has the same figures`,
  noneTitle: 'Nothing used',
  noneText: 'There was no model call in this period.',
  more: (count: number) => `${count} more are in the sums and not in the table.`,
  unpriced: (count: number) =>
    count === 1
      ? 'The price of 1 call is not known; it is not in the cost.'
      : `The prices of ${count} calls are not known; they are not in the cost.`,
  estimated: (count: number) =>
    count === 1
      ? 'The tokens of 1 call are estimated: it ended early, or its provider reports none.'
      : `The tokens of ${count} calls are estimated: they ended early, or their provider reports none.`,
  limits: 'Limits of today',
  tokensToday: 'Tokens',
  sharedTokensToday: 'Tokens at shared providers',
  costToday: 'Cost',
  noLimit: 'no limit',
  of: (spent: string, limit: string) => `${spent} of ${limit}`,
  reserved: (amount: string) => `${amount} more are reserved for calls in progress.`,
  resets: (at: Date) =>
    `The day ends ${new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'short' }).format(at)}. Limits are set in the configuration of the server.`,
}

export type UsageText = Texts<typeof en>
export const useUsageText = defineText(en, import.meta.glob('../*/usage.ts'))
