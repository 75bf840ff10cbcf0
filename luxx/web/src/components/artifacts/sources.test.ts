import { expect, test } from 'vitest'
import { readChart } from './chart'
import { titleOf, withoutFence } from './pageText'

test('a chart of Luxx and one of Chart.js are read alike', () => {
  const own = readChart('{"type":"column","labels":["a","b"],"series":[{"name":"x","values":[1,null]}]}')
  const other = readChart('{"type":"bar","data":{"labels":["a","b"],"datasets":[{"label":"x","data":[1,null]}]}}')
  expect(own).toEqual(other)
  expect(own?.series[0]).toEqual({ name: 'x', values: [1, null] })
})

test('a chart without labels counts its values', () => {
  expect(readChart('{"type":"line","series":[{"values":[5,6,7]}]}')?.labels).toEqual(['1', '2', '3'])
})

test.each(['', 'no JSON', '[]', '{"series":[]}', '{"type":"radar","series":[{"values":[1]}]}', '{"series":[{"name":"x"}]}'])(
  '%s is no chart',
  (text) => {
    expect(readChart(text)).toBeNull()
  },
)

test.each([
  ['# Rye **bread**\n\ntext', 'Rye bread'],
  ['<!-- layout: cover -->\n## Bread\n', 'Bread'],
  ['{"name":"Q\\"1","columns":[],"rows":[]}', 'Q"1'],
  ['- first point', 'first point'],
  ['', ''],
])('%j is called %j', (content, title) => {
  expect(titleOf(content)).toBe(title)
})

test.each([
  ['# Rye', '# Rye'],
  ['```markdown\n# Rye\n\n- flour\n```\n', '# Rye\n\n- flour'],
  ['~~~\n# Rye\n```\ncode\n```\n~~~', '# Rye\n```\ncode\n```'],
  ['# Rye\n\n```\ncode\n```', '# Rye\n\n```\ncode\n```'],
])('the answer %j is the page %j', (answer, page) => {
  expect(withoutFence(answer)).toBe(page)
})
