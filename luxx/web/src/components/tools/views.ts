/**
 * What a tool call asks for and what it answers, as views: a terminal, a difference, a table. Pure. `BY_NAME` has the
 * tools with a form of their own; every other one, also those of MCP servers, is shown by the shape of its data.
 */
import { parseObject } from '@/run/steps'
import { withoutEscapes } from './plain'

type Values = Record<string, unknown>

/** A page, a passage or a fact; of a page that was not read, `problem` says why. */
export interface Hit {
  title: string
  /** A web address of http or https; empty: there is none. */
  url: string
  domain: string
  text: string
  problem?: string
}

export interface Line {
  path: string
  /** What is known of the path: a size, a kind. */
  about: string
  /** In a file: the number of the line, and its text. */
  number: number | null
  text: string
}

export type View =
  | { kind: 'command'; prompt: string; text: string }
  | { kind: 'terminal'; stdout: string; stderr: string; exitCode: number | null; limit: string }
  | { kind: 'diff'; path: string; diff: string }
  | { kind: 'code'; path: string; text: string; firstLine: number }
  | { kind: 'table'; name: string; columns: string[]; rows: string[][] }
  | { kind: 'hits'; hits: Hit[] }
  | { kind: 'lines'; lines: Line[]; pattern: string; ignoresCase: boolean }
  | { kind: 'todos'; items: { title: string; isDone: boolean }[] }
  | { kind: 'fields'; fields: [name: string, value: string][] }
  | { kind: 'text'; text: string }
  | { kind: 'error'; text: string }

interface Form {
  call?: (values: Values) => View[]
  result?: (data: Values, values: Values) => View[]
}

const PYTHON: Form = { call: (values) => [command('python', values.code), ...fieldsOf(values, ['code'])], result: terminal }
const EDIT: Form = { call: edits, result: (data) => [diff(data.path, text(data.diff)), ...note(data)] }
const PAGES: Form = { result: (data) => [{ kind: 'hits', hits: pagesOf(data) }, ...note(data)] }
const PATHS: Form = { result: paths }
const TODOS = (values: Values): View[] => [{ kind: 'todos', items: objects(values.todos).map(todo) }]

const BY_NAME: Record<string, Form> = {
  shell_execute: { call: (values) => [command('$', values.command), ...fieldsOf(values, ['command'])], result: terminal },
  python_execute: PYTHON,
  python_eval: {
    call: (values) => [command('>>>', values.expression), ...fieldsOf(values, ['expression'])],
    result: (data) => [{ kind: 'terminal', stdout: readable(data.result), stderr: '', exitCode: null, limit: '' }],
  },
  file_edit: EDIT,
  file_multi_edit: EDIT,
  file_read: { result: (data) => [code(data.path, data.content, Number(data.offset ?? 0) + 1), ...note(data)] },
  file_write: { call: (values) => [code(values.path, values.content, 1), ...fieldsOf(values, ['path', 'content'])] },
  file_list: PATHS,
  file_glob: PATHS,
  file_grep: {
    result: (data, values) => [
      { kind: 'lines', lines: objects(data.matches).flatMap(matchLines), pattern: text(values.pattern), ignoresCase: values.ignore_case === true },
      ...note(data),
    ],
  },
  web_search: PAGES,
  web_fetch: PAGES,
  batch_fetch: PAGES,
  knowledge_search: PAGES,
  memory_search: PAGES,
  todo_write: { call: TODOS, result: TODOS },
}

/** What the call asks for. Arguments that are no JSON object are shown as they are. */
export function callViews(tool: string, json: string): View[] {
  const values = parseObject(json)
  if (!values) return json.trim() ? [{ kind: 'text', text: json }] : []
  return filled(BY_NAME[tool]?.call, values, values) ?? shapeOf(values)
}

/** What the tool answered: `content` is its result as JSON, or a text. */
export function resultViews(tool: string, json: string, content: string): View[] {
  const result = parseObject(content)
  if (!result || !('success' in result)) return resultOf(tool, json, result ?? content)
  const views = resultOf(tool, json, result.data)
  // The exit code says it, and the output says why.
  const isSaid = views.some((view) => view.kind === 'terminal' && view.exitCode !== null)
  return result.success === false && !isSaid ? [{ kind: 'error', text: text(result.error) }, ...views] : views
}

function resultOf(tool: string, json: string, data: unknown): View[] {
  const form = BY_NAME[tool]?.result
  return (isObject(data) && filled(form, data, parseObject(json) ?? {})) || shapeOf(data)
}

/** The views of a form; null: its data has not the shape that it expects, such as that of a cut result. */
function filled(form: ((data: Values, values: Values) => View[]) | undefined, data: Values, values: Values): View[] | null {
  const views = form?.(data, values) ?? []
  return views.some(hasContent) && !('beginning' in data) ? views : null
}

function hasContent(view: View): boolean {
  if (view.kind === 'hits') return view.hits.length > 0
  if (view.kind === 'lines') return view.lines.length > 0
  if (view.kind === 'todos') return view.items.length > 0
  if (view.kind === 'terminal') return view.stdout !== '' || view.stderr !== '' || view.exitCode !== null
  if (view.kind === 'diff') return view.diff !== ''
  return view.kind === 'table' || view.kind === 'fields' || view.text !== ''
}

// --- by shape

/** JSON by its shape: rows as tables, names with values, anything else as text. */
export function shapeOf(data: unknown): View[] {
  if (data === null || data === undefined || data === '') return []
  if (typeof data === 'string') return [{ kind: 'text', text: data }]
  if (Array.isArray(data)) return isTable(data) ? [tableOf('', data)] : [{ kind: 'text', text: listed(data) }]
  if (!isObject(data)) return [{ kind: 'text', text: readable(data) }]
  if (Array.isArray(data.columns) && Array.isArray(data.rows)) return [columnsOf(data.columns, data.rows), ...fieldsOf(data, ['columns', 'rows'])]
  const tables = Object.entries(data).filter((entry): entry is [string, Values[]] => isTable(entry[1]))
  const names = tables.map(([name]) => name)
  return [...fieldsOf(data, names), ...tables.map(([name, rows]) => tableOf(inWords(name), rows))]
}

function isTable(value: unknown): value is Values[] {
  return Array.isArray(value) && value.length > 0 && value.every(isObject)
}

function tableOf(name: string, rows: readonly Values[]): View {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((column) => rows.some((row) => !isEmpty(row[column])))
  return { kind: 'table', name, columns: columns.map(inWords), rows: rows.map((row) => columns.map((column) => cell(row[column]))) }
}

function columnsOf(columns: readonly unknown[], rows: readonly unknown[]): View {
  const names = columns.map(text)
  const values = rows.map((row) => (Array.isArray(row) ? row.map(cell) : isObject(row) ? names.map((name) => cell(row[name])) : [cell(row)]))
  return { kind: 'table', name: '', columns: names, rows: values }
}

/** The values that are there, with their names as words; long JSON on lines of its own. */
function fieldsOf(values: Values, without: readonly string[] = []): View[] {
  const shown = Object.entries(values).filter(([name, value]) => !without.includes(name) && !isEmpty(value))
  return shown.length ? [{ kind: 'fields', fields: shown.map(([name, value]) => [inWords(name), readable(value)]) }] : []
}

/** `old_string` → "Old string". */
export function inWords(name: string): string {
  const words = name
    .replace(/([a-z\d])([A-Z])/g, '$1 $2')
    .replace(/[_-]+/g, ' ')
    .trim()
  return words ? words[0]?.toUpperCase() + words.slice(1) : name
}

function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === '') return true
  return Array.isArray(value) ? value.length === 0 : isObject(value) && Object.values(value).every(isEmpty)
}

function isObject(value: unknown): value is Values {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function objects(value: unknown): Values[] {
  return Array.isArray(value) ? value.filter(isObject) : []
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : value === null || value === undefined ? '' : JSON.stringify(value)
}

function readable(value: unknown): string {
  if (typeof value === 'string') return value
  if (Array.isArray(value)) return listed(value)
  return JSON.stringify(value, null, 2) ?? ''
}

function listed(values: readonly unknown[]): string {
  return isFlat(values) ? values.map(text).join('\n') : JSON.stringify(values, null, 2)
}

function cell(value: unknown): string {
  return Array.isArray(value) && isFlat(value) ? value.map(text).join(', ') : text(value)
}

/** Neither objects nor lists in it. */
function isFlat(values: readonly unknown[]): boolean {
  return values.every((each) => typeof each !== 'object' || each === null)
}

// --- by name

function command(prompt: string, value: unknown): View {
  return { kind: 'command', prompt, text: withoutEscapes(text(value)) }
}

function terminal(data: Values): View[] {
  const exitCode = typeof data.exit_code === 'number' ? data.exit_code : null
  const [stdout, stderr] = [withoutEscapes(text(data.stdout)), withoutEscapes(text(data.stderr))]
  const shown = ['exit_code', 'stdout', 'stderr', 'limit', 'duration_ms', 'images', 'figures', 'files']
  return [
    { kind: 'terminal', stdout, stderr, exitCode, limit: text(data.limit) },
    ...(isObject(data.files) ? fieldsOf(data.files) : []),
    ...fieldsOf({ ...data, truncated: data.truncated === true || null }, shown),
  ]
}

function note(data: Values): View[] {
  return fieldsOf({ note: data.note, output_cut: data.output_cut })
}

function diff(path: unknown, lines: string): View {
  return { kind: 'diff', path: text(path), diff: lines.trimEnd() }
}

/** The edits that a call asks for, as a difference: that of the whole file is known only after it. */
function edits(values: Values): View[] {
  const all = Array.isArray(values.edits) ? objects(values.edits) : [values]
  const changes = all.map((each) => changeOf(text(each.old_string), text(each.new_string)))
  return [diff(values.path, changes.join('\n')), ...fieldsOf(values, ['path', 'edits', 'old_string', 'new_string'])]
}

function changeOf(before: string, after: string): string {
  const old = before === '' ? [] : before.split('\n')
  const made = after === '' ? [] : after.split('\n')
  let start = 0
  while (start < Math.min(old.length, made.length) && old[start] === made[start]) start += 1
  let end = 0
  while (end < Math.min(old.length, made.length) - start && old.at(-1 - end) === made.at(-1 - end)) end += 1
  return [
    '@@',
    ...old.slice(0, start).map((line) => ` ${line}`),
    ...old.slice(start, old.length - end).map((line) => `-${line}`),
    ...made.slice(start, made.length - end).map((line) => `+${line}`),
    ...old.slice(old.length - end).map((line) => ` ${line}`),
  ].join('\n')
}

function code(path: unknown, content: unknown, firstLine: number): View {
  return { kind: 'code', path: text(path), text: text(content), firstLine }
}

function paths(data: Values): View[] {
  const found: unknown[] = [data.entries, data.files].find(Array.isArray) ?? []
  const lines = found.map((each) =>
    isObject(each)
      ? {
          path: text(each.path) + (each.type === 'directory' ? '/' : ''),
          about: each.size === undefined ? '' : text(each.size),
          number: null,
          text: '',
        }
      : { path: text(each), about: '', number: null, text: '' },
  )
  return [{ kind: 'lines', lines, pattern: '', ignoresCase: false }, ...note(data)]
}

function matchLines(match: Values): Line[] {
  const number = Number(match.line_number)
  const path = text(match.path)
  const before = Array.isArray(match.before) ? match.before : []
  const after = Array.isArray(match.after) ? match.after : []
  return [...before, match.line, ...after].map((line, index) => ({ path, about: '', number: number - before.length + index, text: text(line) }))
}

function todo(item: Values): { title: string; isDone: boolean } {
  return { title: text(item.title), isDone: item.completed === true }
}

function pagesOf(data: Values): Hit[] {
  if (Array.isArray(data.facts)) return objects(data.facts).map((fact) => ({ ...hitOf(fact), title: text(fact.text), text: aboutFact(fact) }))
  if (Array.isArray(data.passages)) return objects(data.passages).map(hitOf)
  if (Array.isArray(data.results))
    return objects(data.results).map((each) => ({ ...hitOf(isObject(each.data) ? each.data : each), problem: text(each.error) }))
  if (typeof data.content === 'string') return [hitOf(data)]
  return objects(data.sources).map(hitOf)
}

function aboutFact(fact: Values): string {
  return [fact.category, fact.valid_at, fact.invalid_at].map(text).filter(Boolean).join(' · ')
}

function hitOf(page: Values): Hit {
  const url = webAddress(text(page.url))
  const shown = text(page.content ?? page.snippet ?? page.quote ?? page.text)
  return { title: text(page.title) || text(page.url), url, domain: url && new URL(url).hostname.replace(/^www\./, ''), text: shown }
}

/** The address if a link may lead to it. */
function webAddress(url: string): string {
  return /^https?:\/\//i.test(url) && URL.canParse(url) ? url : ''
}
