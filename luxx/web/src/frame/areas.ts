/** The areas of the UI: each folder of `pages/` with an `area.ts` has addresses, and most an entry in the rail. */
import type { Component } from 'vue'
import type { RouteRecordRaw } from 'vue-router'
import type { CommonText } from '@/i18n/en/common'

export interface Area {
  name: string
  routes: RouteRecordRaw[]
  /** `group`: above or below in the rail; `order`: from top to bottom; `level`: shown from this level on. */
  rail?: { icon: Component; label: keyof CommonText['areas']; path: string; order: number; group: 'work' | 'setup'; level?: number }
}

export function defineArea(area: Area): Area {
  return area
}

const modules = import.meta.glob<{ default: Area }>('../pages/*/area.ts', { eager: true })

/** Whether a person of this level sees the area in the rail and among the commands. */
export function isShownTo(area: Area, level: number): boolean {
  return area.rail !== undefined && level >= (area.rail.level ?? 0)
}

export const areas: Area[] = Object.values(modules).map((module) => module.default)
