/** What besides the call decides about a permission: the project, the agent, and text from outside in the run. */
import { inject, type InjectionKey, provide, type Ref, ref } from 'vue'

export interface ExplainContext {
  projectId: string
  agentId: number | null
  isTainted: boolean
}

const CONTEXT: InjectionKey<Readonly<Ref<ExplainContext | null>>> = Symbol('explain context')

export function provideExplainContext(context: Readonly<Ref<ExplainContext | null>>): void {
  provide(CONTEXT, context)
}

/** Null where the page does not know it. */
export function useExplainContext(): Readonly<Ref<ExplainContext | null>> {
  return inject(CONTEXT, () => ref(null), true)
}

/** The API takes this many characters of arguments. */
const LONGEST = 8_000
const LONG_VALUE = 500
/** Rules compare these; others are only what a tool writes or sends. */
const COMPARED: ReadonlySet<string> = new Set(['command', 'path', 'url', 'urls'])

/** Arguments that are short enough to be explained: long values that rules do not compare are cut. */
export function explainable(json: string): string {
  if (json.length <= LONGEST) return json
  try {
    const values = JSON.parse(json) as Record<string, unknown>
    const cut = Object.entries(values).map(([name, value]) =>
      typeof value === 'string' && !COMPARED.has(name) ? [name, value.slice(0, LONG_VALUE)] : [name, value],
    )
    return JSON.stringify(Object.fromEntries(cut))
  } catch {
    return json
  }
}
