import { defineText, type Texts } from '../text'

const en = {
  graph: 'Graph',
  whole: 'The whole graph',
  searchPlaceholder: 'Search names',
  noMatchTitle: 'Nothing found',
  noMatchText: 'No name has this text.',
  noneTitle: 'There is no graph yet',
  noneText: 'Facts with a subject and an object, such as “Anna marries Ben”, make the graph.',
  homeText: 'People and things that facts name, and how facts connect them. Facts with a subject and an object, such as “Anna marries Ben”, make it.',
  nothingThen: 'Nothing is known to have been true then.',
  asOf: 'As of',
  now: 'Show the present',
  truncated: 'The graph is larger than the picture: it shows what has the most connections. The list has everything.',
  pictureLabel: (nodes: number, edges: number) =>
    `Picture of the graph: ${nodes === 1 ? '1 node' : `${nodes} nodes`}, ${edges === 1 ? '1 connection' : `${edges} connections`}. The list has the same entities.`,
  noPicture: 'This browser draws no picture (WebGL is missing). The list has everything.',
  zoomIn: 'Zoom in',
  zoomOut: 'Zoom out',
  fit: 'Show all of it',
  communities: (count: number) => (count === 1 ? '1 group' : `${count} groups`),
  members: (count: number) => (count === 1 ? '1 member' : `${count} members`),
  scopeName: (scope: string) => {
    const kind = scope.split(':')[0] ?? ''
    return { user: 'Yours', tenant: 'Everybody in the tenant', project: 'Project', room: 'Room' }[kind] ?? kind
  },
  aliases: (names: string) => `also ${names}`,
  connected: 'Connected with',
  facts: 'Facts',
  noFacts: 'No fact names it any more.',
  untrusted: 'not trusted',
  merge: 'Merge',
  mergeTitle: (name: string) => `Merge ${name} into …`,
  mergeText: 'Choose who or what it really is. Nothing is deleted, and both can be split again.',
  mergeInto: (name: string) => `Merge into ${name}`,
  choose: 'Merge',
  merged: 'Merged.',
  mergedInto: 'This was merged into another entity, which has its facts now.',
  openIt: 'Open it',
  parts: 'Merged into it',
  splitOff: 'Split off',
  split: 'Split off.',
  history: 'Changes',
  wasMerged: 'Merged',
  wasSplit: 'Split',
  undo: 'Undo',
  undone: 'Undone',
}

export type GraphText = Texts<typeof en>
export const useGraphText = defineText(en, import.meta.glob('../*/graph.ts'))
