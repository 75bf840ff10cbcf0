/** The entries of a menu. */
import type { Component } from 'vue'

export interface MenuEntry {
  label: string
  icon?: Component
  /** Shown at the right: a shortcut or a value. */
  note?: string
  isChosen?: boolean
  isDangerous?: boolean
  isDisabled?: boolean
  run(): void
}
