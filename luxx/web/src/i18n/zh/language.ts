import type { LanguageEntry } from '../text'

const chinese: LanguageEntry = { label: '中文', locale: 'zh-CN' }

export default chinese
