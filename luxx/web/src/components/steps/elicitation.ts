/** The form of what an MCP server asks for: texts, numbers, booleans, choices and lists of choices. */
import { argumentsOf, type Field, fieldsOf } from '@/pages/tools/toolForm'

interface Option {
  const?: unknown
  title?: string
}

interface Property {
  type?: string
  title?: string
  description?: string
  default?: unknown
  enum?: unknown[]
  oneOf?: Option[]
  items?: { enum?: unknown[]; anyOf?: Option[] }
}

export interface ListField {
  name: string
  label: string
  choices: { value: string; label: string }[]
}

const propertiesOf = (schema: unknown): [string, Property][] =>
  Object.entries((schema as { properties?: Record<string, Property> } | undefined)?.properties ?? {})

/** The fields with one value. */
export function flatFieldsOf(schema: unknown): Field[] {
  const required = (schema as { required?: string[] } | undefined)?.required ?? []
  const properties = propertiesOf(schema)
    .filter(([, property]) => property.type !== 'array')
    .map(([name, property]) => {
      const about = [property.title, property.description].filter(Boolean).join(': ')
      const choices = property.oneOf?.map((option) => option.const) ?? property.enum
      return [name, { ...property, description: about, ...(choices ? { enum: choices } : {}) }]
    })
  return fieldsOf({ parameters: { properties: Object.fromEntries(properties), required } })
}

/** The fields with several of some choices. */
export function listsOf(schema: unknown): ListField[] {
  return propertiesOf(schema)
    .filter(([, property]) => property.type === 'array')
    .map(([name, { title, description, items }]) => ({
      name,
      label: title || description || name,
      choices: (items?.anyOf ?? (items?.enum ?? []).map((value): Option => ({ const: value }))).map((option) => ({
        value: String(option.const),
        label: option.title || String(option.const),
      })),
    }))
}

/** What is typed at first: the defaults of the server. */
export function defaultsOf(schema: unknown): Record<string, string> {
  const known = propertiesOf(schema).filter(([, property]) => property.type !== 'array' && property.default !== undefined)
  return Object.fromEntries(known.map(([name, property]) => [name, String(property.default)]))
}

/** The values of what was typed and ticked; what is left empty is left out. */
export function valuesOf(
  fields: readonly Field[],
  typed: Readonly<Record<string, string>>,
  ticked: Readonly<Record<string, string[]>>,
): Record<string, unknown> {
  const lists = Object.entries(ticked).filter(([, values]) => values.length > 0)
  return { ...argumentsOf(fields, typed), ...Object.fromEntries(lists) }
}
