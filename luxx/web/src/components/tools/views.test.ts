import { expect, test } from 'vitest'
import { marked, withoutEscapes } from './plain'
import { callViews, inWords, resultViews, shapeOf } from './views'

const answer = (data: unknown, error?: string) => JSON.stringify({ success: error === undefined, data, error: error ?? null })

test('arguments are shown with names as words, and without those that are empty', () => {
  const json = JSON.stringify({ file_path: 'a.md', note: null, tags: [], text: '', deep: { one: null }, isNew: false })
  expect(callViews('other', json)).toEqual([
    {
      kind: 'fields',
      fields: [
        ['File path', 'a.md'],
        ['Is New', 'false'],
      ],
    },
  ])
  expect(callViews('other', '{}')).toEqual([])
  expect(callViews('other', 'no json')).toEqual([{ kind: 'text', text: 'no json' }])
  expect(inWords('__')).toBe('__')
})

test('a command keeps its output when it fails', () => {
  expect(callViews('shell_execute', '{"command": "ls"}')).toEqual([{ kind: 'command', prompt: '$', text: 'ls' }])
  const views = resultViews('shell_execute', '{}', answer({ exit_code: 2, stdout: 'a', stderr: '\u001b[31mb\u001b[0m', limit: null }, 'it failed'))
  expect(views).toEqual([{ kind: 'terminal', stdout: 'a', stderr: 'b', exitCode: 2, limit: '' }])
  expect(resultViews('shell_execute', '{}', answer(null, 'no sandbox'))).toEqual([{ kind: 'error', text: 'no sandbox' }])
})

test('an edit is a difference before it is made', () => {
  const [view] = callViews('file_edit', JSON.stringify({ path: 'a', old_string: 'one\ntwo\nthree', new_string: 'one\n2\nthree' }))
  expect(view).toEqual({ kind: 'diff', path: 'a', diff: '@@\n one\n-two\n+2\n three' })
  const [all] = callViews(
    'file_multi_edit',
    JSON.stringify({
      path: 'a',
      edits: [
        { old_string: 'x', new_string: '' },
        { old_string: 'y', new_string: 'z' },
      ],
    }),
  )
  expect(all).toEqual({ kind: 'diff', path: 'a', diff: '@@\n-x\n@@\n-y\n+z' })
})

test('an unknown shape and a cut result have the general form', () => {
  expect(resultViews('web_search', '{}', answer({ beginning: '{"sou', output_cut: 'much more' }))).toEqual([
    {
      kind: 'fields',
      fields: [
        ['Beginning', '{"sou'],
        ['Output cut', 'much more'],
      ],
    },
  ])
  expect(resultViews('file_list', '{}', answer('text'))).toEqual([{ kind: 'text', text: 'text' }])
  expect(resultViews('other', '{}', 'no json')).toEqual([{ kind: 'text', text: 'no json' }])
  expect(
    shapeOf([
      { a: 1, b: null },
      { a: [1, 2], c: { d: 1 } },
    ]),
  ).toEqual([
    {
      kind: 'table',
      name: '',
      columns: ['A', 'C'],
      rows: [
        ['1', ''],
        ['1, 2', '{"d":1}'],
      ],
    },
  ])
  expect(shapeOf({ columns: ['n'], rows: [['x'], [{ y: 1 }]], truncated: false })[0]).toEqual({
    kind: 'table',
    name: '',
    columns: ['n'],
    rows: [['x'], ['{"y":1}']],
  })
})

test('only addresses of the web become links', () => {
  const sources = [
    { url: 'javascript:alert(1)', title: '<b>x</b>', snippet: 's' },
    { url: 'https://www.example.org/a', title: '', snippet: '' },
  ]
  expect(resultViews('web_search', '{}', answer({ query: 'q', sources }))).toEqual([
    {
      kind: 'hits',
      hits: [
        { title: '<b>x</b>', url: '', domain: '', text: 's' },
        { title: 'https://www.example.org/a', url: 'https://www.example.org/a', domain: 'example.org', text: '' },
      ],
    },
  ])
})

test('escape sequences are removed, and lines that were written over', () => {
  expect(withoutEscapes('\u001b[1;31mred\u001b[0m \u001b]8;;http://x\u0007link\u001b]8;;\u0007')).toBe('red link')
  expect(withoutEscapes('1%\r50%\r100%\nend\r\n')).toBe('100%\nend\n')
})

test('matches are marked, and patterns that could take long are not looked for', () => {
  expect(marked('a milk b', 'milk|tea', false)).toEqual([
    { text: 'a ', isMatch: false },
    { text: 'milk', isMatch: true },
    { text: ' b', isMatch: false },
  ])
  expect(marked('a.b', 'A\\.B', true)).toEqual([{ text: 'a.b', isMatch: true }])
  for (const pattern of ['(a+)+$', 'a*', '(', '[', '']) expect(marked('aaa', pattern, false)).toEqual([{ text: 'aaa', isMatch: false }])
})

test('lines around a match have their numbers', () => {
  const [view] = resultViews(
    'file_grep',
    '{"pattern": "b"}',
    answer({ matches: [{ path: 'x', line_number: 2, line: 'b', before: ['a'], after: ['c'] }] }),
  )
  expect(view).toMatchObject({
    lines: [
      { number: 1, text: 'a' },
      { number: 2, text: 'b' },
      { number: 3, text: 'c' },
    ],
  })
})
