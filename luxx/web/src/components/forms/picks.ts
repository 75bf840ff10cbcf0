/** What a PickList offers. */
import type { OptionGroup } from './optionList'

export interface PickOption {
  id: string
  label: string
  /** Below the label. */
  about?: string
  /** At the right. */
  note?: string
  isChosen?: boolean
}

export type PickGroup = OptionGroup<PickOption>
