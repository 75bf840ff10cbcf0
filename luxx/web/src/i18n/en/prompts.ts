import { defineText, type Texts } from '../text'

const en = {
  prompts: 'Prompts',
  newPrompt: 'New prompt',
  searchPlaceholder: 'Search prompts',
  noMatchTitle: 'Nothing found',
  noMatchText: 'No prompt has these words in its name, title or description. Try fewer words.',
  noneTitle: 'No prompts yet',
  noneText: 'Create one with the + above.',
  homeTitle: 'Texts that you use again',
  homeText:
    'Save a text once, with variables such as {{language}}. In a chat, type / and its name: you fill in the variables, and the text is inserted.',
  createPrompt: 'Create a prompt',
  name: 'Name',
  nameHint: 'What you type after the /: lowercase letters, digits and hyphens.',
  title: 'Title',
  description: 'Description',
  content: 'Text',
  contentHint: 'A variable is written {{text}}, or {{language:French}} with a default.',
  variables: 'Variables',
  share: 'Share with everybody in the tenant',
  shareHint: 'Everybody uses it; only administrators change it.',
  isShared: 'Shared',
  readOnly: 'This prompt is shared with you. Only administrators change it; you can make a copy.',
  othersPrompt: 'Another administrator shares this prompt. You can stop sharing it or delete it.',
  copy: 'Make a copy',
  stopSharing: 'Stop sharing',
  remove: 'Delete the prompt',
  removeTitle: (name: string) => `Delete /${name}?`,
  removeText: 'The prompt is deleted. Messages that were written with it stay.',
  removeShared: 'It is deleted for everybody in the tenant. Messages that were written with it stay.',
  saved: 'Saved.',

  saveAsPrompt: 'Save as prompt',
  commands: 'Commands',
  found: (count: number) => (count === 1 ? '1 command' : `${count} commands`),
  fillTitle: (name: string) => `/${name}`,
  fillText: 'The text is inserted into the message. Nothing is sent.',
  insert: 'Insert',
  about: {
    new: 'Begin a new chat',
    model: 'Choose the model',
    agent: 'Choose the agent',
    tools: 'Choose the tools',
    todos: 'Show the to-do list',
    fork: 'Copy the conversation',
    export: 'Export as Markdown',
    stop: 'Stop the answer',
  },
}

export type PromptsText = Texts<typeof en>
export const usePromptsText = defineText(en, () => import('../zh/prompts'))
