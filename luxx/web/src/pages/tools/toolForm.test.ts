import { expect, test } from 'vitest'
import { argumentsOf, fieldsOf } from './toolForm'

const tool = {
  name: 'search',
  parameters: {
    type: 'object',
    properties: {
      query: { type: 'string', description: 'What to find' },
      limit: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
      mode: { type: 'string', enum: ['fast', 'deep'] },
      exact: { type: ['boolean', 'null'] },
      paths: { type: 'array' },
    },
    required: ['query'],
  },
}

test('each type has its kind of field', () => {
  const fields = fieldsOf(tool)
  expect(fields.map(({ name, kind, isRequired }) => [name, kind, isRequired])).toEqual([
    ['query', 'text', true],
    ['limit', 'number', false],
    ['mode', 'choice', false],
    ['exact', 'boolean', false],
    ['paths', 'json', false],
  ])
  expect(fields[2]?.choices).toEqual(['fast', 'deep'])
})

test('what is left empty is left out, and JSON is parsed', () => {
  const fields = fieldsOf(tool)
  const typed = { query: '42', limit: '3', mode: '', exact: 'false', paths: '["a"]' }
  expect(argumentsOf(fields, typed)).toEqual({ query: '42', limit: 3, exact: false, paths: ['a'] })
  expect(() => argumentsOf(fields, { paths: '[' })).toThrow('paths')
  expect(fieldsOf({ parameters: {} })).toEqual([])
})
