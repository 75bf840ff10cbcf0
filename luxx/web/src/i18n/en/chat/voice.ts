import { defineText, type Texts } from '../../text'

const en = {
  reading: 'Reading aloud',
  stopReading: 'Stop',
  readingProblems: {
    nothing: 'There is nothing to read aloud here: code and formulas are left out.',
    noVoices: 'This browser has no voice to read with. Install one in the settings of the system, under speech or accessibility.',
    refused: 'The browser refuses to speak. Allow sound for this page in its settings, then try again.',
    failed: 'The browser could not read the answer aloud. Try again, or use another browser.',
  },
  noVoiceOf: (language: string) =>
    `This browser has no voice for this language: ${language}. Install one in the settings of the system, under speech or accessibility.`,
  dictation: 'Dictation',
  dictationAbout:
    'Your browser writes down what you say. Some browsers send the sound to their maker for this. Luxx gets only the words, and sends nothing before you do.',
  startDictation: 'Start dictation',
  stopDictation: 'Done',
  listening: 'Listening…',
  dictationProblems: {
    refused: 'The browser refuses the microphone. Allow it for this page in the settings of the browser, then try again.',
    noMicrophone: 'No microphone was found. Connect one, then try again.',
    noSpeech: 'Nothing was heard. Check the microphone, then try again.',
    noNetwork: 'The speech recognition of the browser cannot be reached. Check the network, then try again.',
    noLanguage: 'The browser has no speech recognition for the language of this page.',
    failed: 'The speech recognition of the browser ended with an error. Try again, or use another browser.',
  },
}

export type VoiceText = Texts<typeof en>
export const useVoiceText = defineText(en, import.meta.glob('../../*/chat/voice.ts'))
