import { expect, test } from 'vitest'
import { readChart } from './chart'

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
