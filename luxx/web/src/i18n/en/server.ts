import { defineText, type Texts } from '../text'

const en = {
  /** A sentence of the server in the language of the page; as the server wrote it where that has none. */
  translate: (sentence: string, _kind?: string): string => sentence,
}

export type ServerText = Texts<typeof en>
export const useServerText = defineText(en, import.meta.glob('../*/server.ts'))
