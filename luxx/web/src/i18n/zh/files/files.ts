import type { FilesText } from '../../en/files/files'

const zh: FilesText = {
  title: '文件',
  workspace: '工作区',
  folders: '文件夹',
  upload: '上传',
  uploading: '正在上传',
  dropHere: '把文件拖到这里上传',
  search: '在此文件夹中搜索',
  name: '名称',
  size: '大小',
  type: '类型',
  modified: '修改时间',
  path: '路径',
  actions: '操作',
  download: (name) => `下载 ${name}`,
  downloadThis: '下载',
  delete: (name) => `删除 ${name}`,
  deleteTitle: '永久删除？',
  deleteFile: (name) => `将从你的工作区删除 ${name}。附有它的消息会保留已读取的内容。`,
  deleteFolder: (name) => `将删除文件夹 ${name}；它必须是空的。`,
  noneTitle: '这里没有文件',
  noneText: '用按钮上传文件，或把文件拖到页面上。智能体为你写的文件也列在这里。',
  noMatchTitle: '没有这样的文件',
  noMatchText: '此文件夹中没有名称包含这些词的文件。',
  noPreview: '这里不显示此类文件。请下载后打开。',
  isCut: '只显示开头部分。',
}

export default zh
