/** Loads again what a page shows. */
import { type EntryKey, useQueryCache } from '@pinia/colada'

/** A function that loads the queries again whose keys begin with `key`, or all. It never fails: what cannot be
 *  loaded shows that itself, and what was saved before is saved. */
export function useReload(): (key?: EntryKey) => Promise<void> {
  const cache = useQueryCache()
  return async (key) => {
    await cache.invalidateQueries(key && { key }).catch(() => undefined)
  }
}
