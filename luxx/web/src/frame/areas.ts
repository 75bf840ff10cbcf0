/** The areas of the UI: each folder of `pages/` with an `area.ts` has addresses, and most an entry in the rail. */
import type { Component } from 'vue'
import type { RouteRecordRaw } from 'vue-router'
import type { CommonText } from '@/i18n/en/common'

export interface Area {
  name: string
  routes: RouteRecordRaw[]
  /** `group`: above or below in the rail; `order`: from top to bottom. */
  rail?: { icon: Component; label: keyof CommonText['areas']; path: string; order: number; group: 'work' | 'setup' }
}

export function defineArea(area: Area): Area {
  return area
}

const modules = import.meta.glob<{ default: Area }>('../pages/*/area.ts', { eager: true })

export const areas: Area[] = Object.values(modules).map((module) => module.default)
