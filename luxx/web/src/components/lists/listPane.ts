/** What a list pane shows, and how it reads it. */
import type { Component } from 'vue'
import type { RouteLocationRaw } from 'vue-router'

export interface ListPaneProps<T> {
  title: string
  icon: Component
  /** The label of the search field; without one there is none. */
  searchLabel?: string
  emptyTitle: string
  emptyText: string
  noMatchTitle: string
  noMatchText: string
  /** Said instead where no words are searched for, but the filters leave out everything. */
  filteredText?: string
  /** Whether the `filters` leave anything out. */
  isFiltered?: boolean
  /** The list is read again when query cache entries under this key are invalidated. */
  queryKey: readonly string[]
  /** The first `pages` pages of what matches the words. */
  load: (words: string, pages: number) => Promise<{ items: T[]; hasMore: boolean }>
  /** The address of an item. */
  pathOf: (item: T) => string
  /** Where the link of an item leads; without it, to its address. */
  linkOf?: (item: T) => Exclude<RouteLocationRaw, string> | string
  /** Where a new one is created, and the label and the icon of the link. */
  newPath?: RouteLocationRaw
  newLabel?: string
  newIcon?: Component
}
