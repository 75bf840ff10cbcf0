/** A page that a model writes anew: its run, what came of it, and how what it changed is taken back. */
import { ApiError, api, askForRun } from '@/api/client'
import { type Artifact, listVersions, pathOf, readArtifact, readContent, saveContent } from './artifacts'

/** The run that is under way, or whose page is undecided. It is kept in this browser, so that a reload shows it again. */
export interface Regeneration {
  /** Empty: none. */
  runId: string
  /** The source page, counted from 1; 0 and no id: the run was started elsewhere, and does not name its page. */
  page: number
  pageId: string
}

export const NO_RUN: Regeneration = { runId: '', page: 0, pageId: '' }

/** A text for a page, and the text that it replaces, with a version that has that one. No id: all pages. */
export interface Replacement {
  pageId: string
  content: string
  replaced: string
  version: number
}

/** Starts the run. Its answer becomes the page. */
export function regenerate(id: string, pageIndex: number, instructions: string): Promise<{ id: string }> {
  const body = { page_index: pageIndex, instructions }
  return askForRun(api.POST('/artifacts/{artifact_id}/regenerate', { params: pathOf(id), body, headers: { accept: 'application/json' } }))
}

/** The version that the run made; 0: none. */
export async function versionOfRun(id: string, runId: string): Promise<number> {
  return (await listVersions(id)).find((version) => version.run_id === runId)?.version ?? 0
}

/** What puts back the text from before `version`: of the page, if it changed no other one, else of all pages. */
export async function textBefore(artifact: Artifact, version: number): Promise<Replacement> {
  const [before, after] = await Promise.all([readContent(artifact.id, version - 1), readContent(artifact.id, version)])
  const old = new Map(before.pages.map((page) => [page.id, page.content]))
  const [page, ...others] = after.pages.filter(({ id, content }) => old.get(id) !== content)
  const content = page && old.get(page.id)
  if (content === undefined || others.length > 0 || before.pages.length !== after.pages.length)
    return { pageId: '', content: before.content, replaced: after.content, version }
  return { pageId: page!.id, content, replaced: page!.content, version }
}

/** Whether the text was saved. It is not if somebody else saved another text than the one that it replaces. */
export async function saveReplacement(id: string, { pageId, content, replaced }: Replacement): Promise<boolean> {
  // Versions in which other pages were changed do not stand in the way. Each attempt reads a newer one.
  for (let { head } = await readArtifact(id); ;) {
    const stored = await readContent(id, head)
    const page = stored.pages.find((each) => each.id === pageId)
    if ((pageId ? page?.content : stored.content) !== replaced) return false
    try {
      await saveContent(id, { ...(page ? { page: page.index } : {}), content, base_version: head })
      return true
    } catch (error) {
      const later = error instanceof ApiError && error.status === 409 ? Number(error.detail.version) : 0
      if (!(later > head)) throw error
      head = later
    }
  }
}
