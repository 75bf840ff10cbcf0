/** The pages of an area that has a fixed set of them. */
import type { Component } from 'vue'

export interface Section {
  path: string
  label: string
  icon: Component
}
