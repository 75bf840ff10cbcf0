import { defineText, type Texts } from '../../text'

const en = {
  asked: 'What is asked for',
  stdout: 'Output',
  stderr: 'Error output',
  exitCode: (code: number) => `Exit code ${code}`,
  limit: (name: string) => `Ended at a limit: ${name}`,
  noOutput: 'No output',
  difference: 'What changes',
  differenceOf: (path: string) => `What changes in ${path}`,
  file: 'Text',
  showAll: (count: number) => `Show all ${count} lines`,
  showLess: 'Show less',
  firstRows: (shown: number, all: number) => `The first ${shown} of ${all} rows.`,
  firstOf: (shown: number, all: number) => `The first ${shown} of ${all}.`,
  table: 'Table',
  hits: 'Found',
  done: 'Done',
  open: 'Open',
  fields: 'Values',
  noArguments: 'No arguments',
  riskIs: { low: 'Low risk', medium: 'Medium risk', high: 'High risk' } as Record<string, string>,
  does: { read: 'Reads', write: 'Writes', run: 'Runs commands', network: 'Uses the network', server: 'Calls a tool of an MCP server' },
}

export type ToolViewsText = Texts<typeof en>
export const useToolViewsText = defineText(en, import.meta.glob('../../*/tools/views.ts'))
