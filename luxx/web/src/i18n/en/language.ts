import type { LanguageEntry } from '../text'

const english: LanguageEntry = { label: 'English', locale: 'en-GB' }

export default english
