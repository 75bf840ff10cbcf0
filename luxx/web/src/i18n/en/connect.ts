import { defineText, type Texts } from '../text'

const en = {
  title: 'Connect a model',
  choose: 'Who serves the model?',
  key: 'API key',
  keyHint: 'It is stored encrypted and never shown again.',
  keyMayBeEmpty: 'Leave it empty where the server needs none.',
  address: 'Address',
  addressHint: 'For example http://127.0.0.1:11434/v1',
  name: 'Name',
  connect: 'Connect',
  connecting: 'Asking for its models',
  chooseModel: 'Choose the default model',
  modelName: 'Name of the model',
  search: 'Search models',
  done: 'Use this model',
  back: 'Another provider',
  own: 'A server of your own',
  ownAbout: 'vLLM, llama.cpp, LM Studio and all that speak the OpenAI API',
  share: 'Let all users of this server use it',
  connected: (name: string) => `${name} is connected.`,
  noModels: 'The provider lists no models. Write the name of one.',
}

export type ConnectText = Texts<typeof en>
export const useConnectText = defineText(en, import.meta.glob('../*/connect.ts'))
