import { expect, test } from 'vitest'
import { defaultsOf, flatFieldsOf, listsOf, valuesOf } from './elicitation'

const SCHEMA = {
  properties: {
    name: { type: 'string', title: 'Your name', description: 'as on the card' },
    people: { type: 'integer', default: 2 },
    seat: { type: 'string', oneOf: [{ const: 'w', title: 'Window' }, { const: 'a' }] },
    meals: { type: 'array', title: 'Meals', items: { anyOf: [{ const: 'veg', title: 'Vegetarian' }] } },
    bags: { type: 'array', items: { enum: ['big', 'small'] } },
  },
  required: ['name'],
}

test('a form has fields of one value and lists of choices', () => {
  const fields = flatFieldsOf(SCHEMA)
  expect(fields.map(({ name, kind, choices }) => [name, kind, choices])).toEqual([
    ['name', 'text', []],
    ['people', 'number', []],
    ['seat', 'choice', ['w', 'a']],
  ])
  expect(fields[0]).toMatchObject({ about: 'Your name: as on the card', isRequired: true })
  expect(listsOf(SCHEMA)).toEqual([
    { name: 'meals', label: 'Meals', choices: [{ value: 'veg', label: 'Vegetarian' }] },
    {
      name: 'bags',
      label: 'bags',
      choices: [
        { value: 'big', label: 'big' },
        { value: 'small', label: 'small' },
      ],
    },
  ])
  expect(defaultsOf(SCHEMA)).toEqual({ people: '2' })
  const values = valuesOf(fields, { name: 'Ann', people: '2', seat: '' }, { meals: ['veg'], bags: [] })
  expect(values).toEqual({ name: 'Ann', people: 2, meals: ['veg'] })
  expect(flatFieldsOf(undefined)).toEqual([])
})
