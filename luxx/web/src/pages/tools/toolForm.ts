/** A form for the arguments of a tool, made of its JSON Schema. */
export interface Field {
  name: string
  kind: 'text' | 'number' | 'boolean' | 'choice' | 'json'
  type: string
  about: string
  isRequired: boolean
  choices: string[]
}

interface Property {
  type?: string | string[]
  anyOf?: Property[]
  enum?: unknown[]
  description?: string
}

/** `parameters`: the JSON Schema. */
export function fieldsOf({ parameters }: { parameters: unknown }): Field[] {
  const schema = parameters as { properties?: Record<string, Property>; required?: string[] }
  return Object.entries(schema.properties ?? {}).map(([name, property]) => {
    const type = typeOf(property)
    const choices = (property.enum ?? []).filter((each) => typeof each === 'string')
    const isRequired = schema.required?.includes(name) ?? false
    return { name, kind: kindOf(type, choices.length), type, about: property.description ?? '', isRequired, choices }
  })
}

function typeOf(property: Property): string {
  const types = property.anyOf ? property.anyOf.flatMap((each) => each.type ?? 'any') : [property.type ?? 'any'].flat()
  return types.filter((type) => type !== 'null').join(' | ') || 'any'
}

function kindOf(type: string, choices: number): Field['kind'] {
  if (choices > 0) return 'choice'
  if (type === 'string') return 'text'
  if (type === 'integer' || type === 'number') return 'number'
  return type === 'boolean' ? 'boolean' : 'json'
}

/** The arguments of what was typed; fields that are left empty are left out. Raises SyntaxError for invalid JSON. */
export function argumentsOf(fields: readonly Field[], typed: Readonly<Record<string, string>>): Record<string, unknown> {
  const given: [string, unknown][] = []
  for (const { name, kind } of fields) {
    const text = String(typed[name] ?? '')
    if (text === '') continue
    if (kind === 'number') given.push([name, Number(text)])
    else if (kind === 'boolean') given.push([name, text === 'true'])
    else if (kind === 'json') given.push([name, parse(name, text)])
    else given.push([name, text])
  }
  return Object.fromEntries(given)
}

function parse(name: string, text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw new SyntaxError(name)
  }
}
