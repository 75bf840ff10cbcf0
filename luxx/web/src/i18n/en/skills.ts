import { defineText, type Texts } from '../text'

const en = {
  title: 'Skills',
  about:
    'Instructions that a model loads when it needs them. Those of a project hide those of the tenant of the same name, and these hide those of the system.',
  search: 'Search skills',
  add: 'Add skills',
  write: 'Write a skill',
  upload: 'Upload',
  uploadLabel: 'Upload a SKILL.md or a ZIP file',
  drop: 'Drop a SKILL.md or a ZIP file here',
  uploaded: (name: string) => `The skill ${name} was added.`,
  place: 'For',
  placeHint: 'A skill of the tenant is for everybody once an administrator has reviewed it.',
  places: { tenant: 'Everybody in the tenant', project: (name: string) => `Project ${name}` },
  noPlace: 'You can add skills to your projects; create a project first.',
  none: 'No skills',
  noneText: 'Upload a skill, write one, or put a folder with a SKILL.md into skills/ of the data directory.',
  noMatch: 'No such skill',
  noMatchText: 'No name or description contains these words.',
  scopes: { system: 'System', tenant: 'Tenant', project: 'Project' },
  states: {
    ready: 'Ready',
    disabled: 'Disabled',
    hidden: 'Hidden by a nearer one',
    unreviewed: 'Not reviewed',
    unusable: 'Cannot be used',
  },
  stateTexts: {
    ready: '',
    disabled: 'No run has it.',
    hidden: 'Runs have another skill in its place.',
    unreviewed: 'Only runs of the person who made it have it, until an administrator has read its present text.',
    unusable: '',
  },
  allowedTools: (names: string) => `Tools while it is active: ${names}`,
  noTools: 'none',
  allTools: 'Tools as before while it is active',
  unknownTools: (names: string) => `not known here: ${names}`,
  triggers: (phrases: string) => `Meant for: ${phrases}`,
  version: (version: string) => `version ${version}`,
  try: 'Which skills and agents does a request ask for?',
  tryHint: 'Matched by words, as a message is, without a model. Skills of the project chosen above count too.',
  match: 'Match',
  nothingMatches: 'No skill and no agent shares words with this request.',
  definition: 'This asks what a word means, so no skill and no agent is meant.',
  aSkill: 'skill',
  anAgent: 'agent',
  happens: 'What a message with these words would cause',
  wouldNothing: 'Nothing: no score reaches the threshold, so the message is sent as it is.',
  wouldSuggest: (names: string) => `“Tell the model what matches”: the model gets the names ${names} and decides.`,
  wouldLoad: (name: string) => `“What matches best acts by itself”: the instructions of ${name} follow the message.`,
  wouldAnswer: (name: string) => `“What matches best acts by itself”: ${name} answers the message.`,
  asksFor: 'asked for',
  below: 'below the threshold',
  score: (score: string, threshold: string) => `${score} of ${threshold}`,
  text: 'SKILL.md',
  textHint: 'Name, description and other keys stand between the two lines of ---, the instructions below.',
  saved: 'Saved.',
  reviewEnds: 'A change ends the review.',
  review: 'Mark as reviewed',
  reviewed: 'Reviewed: this text counts as trusted.',
  changedSince: 'What changed since the last review',
  differsFrom: 'What differs from the skill that it hides',
  noDifference: 'Nothing differs.',
  fileChanges: { added: 'added', removed: 'removed', changed: 'changed' },
  enable: 'Enable',
  disable: 'Disable',
  disableForTenant: 'Disable for the tenant',
  enableForTenant: 'Undo for the tenant',
  replacedBy: 'Replaced in the tenant by',
  notReplaced: 'Not replaced',
  export: 'Download as ZIP',
  delete: 'Delete the skill',
  deleteTitle: 'Delete this skill?',
  deleteText: (name: string) => `${name} is deleted with its files. Runs that began with it keep it.`,
  exampleText: `---
name: meeting-notes
description: Writes the notes of a meeting. Use it when somebody asks for minutes.
triggers: [meeting notes, minutes]
---

Write who was there, what was decided, and who does what until when.
`,
}

export type SkillsText = Texts<typeof en>
export const useSkillsText = defineText(en, () => import('../zh/skills'))
