/** The columns of a `DataTable`. */
import { widthOf } from '@/i18n/format'

const MOST_CHARACTERS = 24

export interface Column<T> {
  key: string
  label: string
  /** The text of a cell without a slot. */
  value?: (row: T) => string
  /** Aligned right, with figures of equal width. */
  isNumber?: boolean
  /** The slot holds texts of several words, which may stand in several lines. */
  isText?: boolean
  /** Holds buttons: its heading is only read aloud. */
  isActions?: boolean
}

/** The width at which words do not stand one in a line; a table that is too wide scrolls instead. */
export function leastWidth<T>(column: Column<T>, rows: readonly T[]): string {
  const widest = column.value ? Math.max(0, ...rows.map((row) => widthOf(column.value?.(row) ?? ''))) : column.isText ? MOST_CHARACTERS : 0
  return `${Math.min(widest, MOST_CHARACTERS) * 0.55 + 1}em`
}
