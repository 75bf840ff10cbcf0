// @vitest-environment jsdom
import { expect, test } from 'vitest'
import { languageOf, spokenPieces } from './spoken'

test.each([
  ['The weather is fine and it stays so.', 'en'],
  ['Das Wetter ist schön und bleibt es auch.', 'de'],
  ['Il fait beau et la mer est calme dans le sud.', 'fr'],
  ['今天天气很好，用 Python 写。', 'zh'],
  ['東京の天気は晴れです。', 'ja'],
  ['오늘 날씨가 좋습니다.', 'ko'],
  ['Погода хорошая.', 'ru'],
  ['42 + 1', 'xx'],
])('%s is in %s', (text, language) => {
  expect(languageOf(text, 'xx')).toBe(language)
})

test('code blocks, formulas, addresses and numbers of sources are not read', () => {
  const source = [
    '# Prices',
    'Gold **rose** [1] to `1.9` units, see [the *report*](https://example.com/a) and https://example.com/b?c=d.',
    '```py\nprint("secret")\n```',
    '    indented code',
    '$$\nE = mc^2\n$$',
    'So $x^2$ grows.',
    '- one\n- two',
    '| a | b |\n| - | - |\n| c | d |',
  ].join('\n\n')
  expect(spokenPieces(source)).toEqual([
    'Prices',
    'Gold rose to 1.9 units, see the report and example.com.',
    'So grows.',
    'one',
    'two',
    'a',
    'b',
    'c',
    'd',
  ])
  expect(spokenPieces('```\nonly code\n```\n\n$$x$$')).toEqual([])
})

test('a long paragraph is read in pieces that lose no word', () => {
  const words = Array.from({ length: 300 }, (_, index) => `word${index}${index % 9 === 0 ? '.' : ''}`).join(' ')
  const pieces = spokenPieces(words)
  expect(pieces.every((piece) => piece.length <= 220)).toBe(true)
  expect(pieces.join(' ')).toBe(words)
  expect(spokenPieces('字'.repeat(500)).join('')).toBe('字'.repeat(500))
})
