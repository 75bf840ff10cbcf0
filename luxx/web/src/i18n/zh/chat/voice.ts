import type { VoiceText } from '../../en/chat/voice'

const zh: VoiceText = {
  reading: '正在朗读',
  stopReading: '停止',
  readingProblems: {
    nothing: '这里没有可朗读的内容：代码和公式不朗读。',
    noVoices: '此浏览器没有可用于朗读的语音。请在系统设置的“语音”或“辅助功能”中安装。',
    refused: '浏览器拒绝朗读。请在浏览器设置中允许此页面播放声音，然后重试。',
    failed: '浏览器无法朗读这个回答。请重试，或使用其他浏览器。',
  },
  noVoiceOf: (language) => `此浏览器没有这种语言的语音：${language}。请在系统设置的“语音”或“辅助功能”中安装。`,
  dictation: '语音输入',
  dictationAbout: '浏览器会把你说的话写成文字。为此，有些浏览器会把声音发送给其开发商。Luxx 只得到文字，在你发送之前不会发送任何内容。',
  startDictation: '开始语音输入',
  stopDictation: '完成',
  listening: '正在听…',
  dictationProblems: {
    refused: '浏览器拒绝使用麦克风。请在浏览器设置中允许此页面使用，然后重试。',
    noMicrophone: '没有找到麦克风。请连接麦克风，然后重试。',
    noSpeech: '没有听到声音。请检查麦克风，然后重试。',
    noNetwork: '无法连接浏览器的语音识别服务。请检查网络，然后重试。',
    noLanguage: '浏览器没有此页面语言的语音识别。',
    failed: '浏览器的语音识别出错。请重试，或使用其他浏览器。',
  },
}

export default zh
