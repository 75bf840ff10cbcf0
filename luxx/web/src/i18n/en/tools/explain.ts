import { defineText, type Texts } from '../../text'

const en = {
  title: 'Why',
  why: 'Why was this asked?',
  whyDecided: 'Which rule decides?',
  hide: 'Hide the reason',
  actions: { allow: 'allow', ask: 'ask', deny: 'deny' },
  verdicts: { allow: 'Allowed', ask: 'Asked about', deny: 'Denied' },
  decidedBy: {
    level: 'your level decides',
    members: 'the tools that it combines decide',
    memory: 'what the tool does in memory decides',
    not_understood: 'the call is not fully understood',
    offer: 'the run was not offered this tool',
    question: 'this tool only asks',
    risk: 'no rule matches, so the risk of the tool decides',
    rule: 'a rule decides',
    sandbox: 'no rule matches, so the sandbox decides',
    skill: 'the active skill decides',
    taint: 'the run has read text from outside',
  },
  because: (reason: string) => `Because ${reason}.`,
  rule: (scope: string, number: number) => `Rule ${number} ${scope}:`,
  scopes: { server: 'of the server', tenant: 'of the tenant', user: 'of yours', project: 'of the project', agent: 'of the agent' },
  now: 'As the rules are now.',
  nowWithoutContext: 'As the rules are now. Rules of a project or an agent, and text from outside that a run has read, are not considered here.',
  openRules: 'Open the rules',
}

export type ExplainText = Texts<typeof en>
export const useExplainText = defineText(en, import.meta.glob('../../*/tools/explain.ts'))
