import type { ConnectText } from '../en/connect'

const zh: ConnectText = {
  title: '连接模型',
  choose: '由谁提供模型？',
  key: 'API 密钥',
  keyHint: '加密保存，不会再次显示。',
  keyMayBeEmpty: '服务器不需要密钥时请留空。',
  address: '地址',
  addressHint: '例如 http://127.0.0.1:11434/v1',
  name: '名称',
  connect: '连接',
  connecting: '正在查询模型',
  chooseModel: '选择默认模型',
  modelName: '模型名称',
  search: '搜索模型',
  done: '使用这个模型',
  back: '换一个服务商',
  own: '你自己的服务器',
  ownAbout: 'vLLM、llama.cpp、LM Studio 以及所有兼容 OpenAI API 的服务',
  share: '允许本服务器的所有用户使用',
  connected: (name) => `已连接 ${name}。`,
  noModels: '该服务商没有列出模型，请填写模型名称。',
}

export default zh
