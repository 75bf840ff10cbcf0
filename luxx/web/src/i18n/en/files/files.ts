import { defineText, type Texts } from '../../text'

const en = {
  title: 'Files',
  workspace: 'Workspace',
  folders: 'Folders',
  upload: 'Upload',
  uploading: 'Uploading',
  dropHere: 'Drop files to upload them here',
  search: 'Search this folder',
  name: 'Name',
  size: 'Size',
  type: 'Type',
  modified: 'Changed',
  path: 'Path',
  actions: 'Actions',
  download: (name: string) => `Download ${name}`,
  downloadThis: 'Download',
  delete: (name: string) => `Delete ${name}`,
  deleteTitle: 'Delete this for good?',
  deleteFile: (name: string) => `${name} is deleted from your workspace. Messages that it was attached to keep what was read.`,
  deleteFolder: (name: string) => `The folder ${name} is deleted; it has to be empty.`,
  noneTitle: 'No files here',
  noneText: 'Upload files with the button, or drop them onto the page. Files that agents write for you are listed here too.',
  noMatchTitle: 'No such files',
  noMatchText: 'No name in this folder contains these words.',
  noPreview: 'This kind of file is not shown here. Download it to open it.',
  isCut: 'Only the beginning is shown.',
}

export type FilesText = Texts<typeof en>
export const useFilesText = defineText(en, import.meta.glob('../../*/files/files.ts'))
