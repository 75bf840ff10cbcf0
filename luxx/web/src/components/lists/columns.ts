/** The columns of a `DataTable`. */
import { widthOf } from '@/i18n/format'

const MOST_CHARACTERS = 24

export interface Column<T> {
  key: string
  label: string
  /** The text of a cell, or of its slot where that holds words that may stand in several lines. */
  value?: (row: T) => string
  /** Aligned right, with figures of equal width. */
  isNumber?: boolean
  /** Holds buttons: its heading is only read aloud. */
  isActions?: boolean
}

/** The width at which words do not stand one in a line; a table that is too wide scrolls instead. */
export function leastWidth<T>(column: Column<T>, rows: readonly T[]): string {
  const widest = Math.max(0, ...rows.map((row) => widthOf(column.value?.(row) ?? '')))
  return `${Math.min(widest, MOST_CHARACTERS) * 0.55 + 1}em`
}
