import { expect, test } from 'vitest'
import { titleOf } from './pageTitle'

test.each([
  ['# Rye **bread**\n\ntext', 'Rye bread'],
  ['<!-- layout: cover -->\n## Bread\n', 'Bread'],
  ['{"name":"Q\\"1","columns":[],"rows":[]}', 'Q"1'],
  ['- first point', 'first point'],
  ['', ''],
])('%j is called %j', (content, title) => {
  expect(titleOf(content)).toBe(title)
})
