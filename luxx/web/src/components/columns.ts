/** The columns of a `DataTable`. */
export interface Column<T> {
  key: string
  label: string
  /** The text of a cell without a slot. */
  value?: (row: T) => string
  /** Aligned right, with figures of equal width. */
  isNumber?: boolean
  /** Holds buttons: its heading is only read aloud. */
  isActions?: boolean
}
