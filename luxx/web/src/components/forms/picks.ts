/** What a PickList offers. */
export interface PickOption {
  id: string
  label: string
  /** Below the label. */
  about?: string
  /** At the right. */
  note?: string
  isChosen?: boolean
}

export interface PickGroup {
  title: string
  options: PickOption[]
}
