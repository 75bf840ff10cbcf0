import { describe, expect, it } from 'vitest'
import { fillIn } from './variables'

describe('fillIn', () => {
  it.each([
    ['Into {{language:French}}: {{text}}', { language: 'German', text: 'a {{b}} $& $1' }, 'Into German: a {{b}} $& $1'],
    ['{{ a }}{{a:1}}', { a: 'x' }, 'xx'],
    ['{{文本}} {{a b}} {{}} {a}', { 文本: '好' }, '好 {{a b}} {{}} {a}'],
    ['{{a}} {{constructor}}', { a: '' }, ' {{constructor}}'],
  ])('%s', (content, values, filled) => {
    expect(fillIn(content, values as Record<string, string>)).toBe(filled)
  })
})
