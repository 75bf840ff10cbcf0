/** The variables of prompts. */

/** As the server finds them (`VARIABLE` in `luxx/features/prompts/models.py`). */
const VARIABLE = /\{\{[ \t]*([^\s{}:]{1,40})[ \t]*(?::([^{}]{0,500}))?\}\}/gu

/** The text with a value for each variable; a variable without a value stays as it is written. */
export function fillIn(content: string, values: Record<string, string>): string {
  return content.replace(VARIABLE, (whole: string, name: string) => (Object.hasOwn(values, name) ? (values[name] ?? whole) : whole))
}
