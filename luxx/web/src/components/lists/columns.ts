/** The columns of a `DataTable`. */
import { widthOf } from '@/i18n/format'

const MOST_CHARACTERS = 24
/** Of a time, a state or a few buttons. */
const CHARACTERS_OF_SLOT = 10

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

/** The width in `rem` at which words do not stand one in a line. */
export function leastWidth<T>({ label, value, isActions }: Column<T>, rows: readonly T[]): number {
  const words = isActions ? [] : label.split(' ')
  const cells = rows.map((row) => value?.(row))
  const widest = Math.max(value ? 0 : CHARACTERS_OF_SLOT, ...[...words, ...cells].map((each) => widthOf(each ?? '')))
  return Math.min(widest, MOST_CHARACTERS) * 0.5 + 0.9
}
