/** Artifacts: their queries, what they are called, and what a person does with them. */
import { type Component, computed } from 'vue'
import { useQuery, useQueryCache } from '@pinia/colada'
import { BookText, ChartColumn, Code, FileText, Globe, Presentation, Sheet, Workflow } from 'lucide-vue-next'
import { useRoute, useRouter } from 'vue-router'
import { api, ask } from '@/api/client'
import { saveFile } from '@/api/files'
import { allPages, firstPages } from '@/api/lists'
import type { Schema } from '@/api/types'
import { drawDiagram } from '@/markdown/diagrams'

export type Artifact = Schema<'ArtifactView'>
export type ArtifactType = Artifact['type']
export type Format = NonNullable<Schema<'SaveBody'>['format']>
export type Preview = Schema<'ArtifactPreview'>
export type PreviewPage = Schema<'PreviewPage'>
export type Version = Schema<'VersionView'>
export type PageDiff = Schema<'PageDiff'>

export const ARTIFACT_KEY = ['artifact'] as const
export const GALLERY_KEY = ['artifacts'] as const
export const TYPES: readonly ArtifactType[] = ['document', 'ppt', 'report', 'sheet', 'chart', 'diagram', 'web', 'code']
export const THEMES = ['clear', 'night', 'paper', 'forest'] as const
/** Empty: the standard theme. */
export type ThemeName = '' | (typeof THEMES)[number]
export const ICONS: Record<ArtifactType, Component> = {
  ppt: Presentation,
  document: FileText,
  report: BookText,
  code: Code,
  web: Globe,
  sheet: Sheet,
  chart: ChartColumn,
  diagram: Workflow,
}
/** The types whose files have pages that are shown as pictures, with a theme and a language. */
export const PAGED: ReadonlySet<ArtifactType> = new Set(['ppt', 'document', 'report'])

/** The shape of a page of the file: a slide, or a sheet of paper. */
export const shapeOf = (type: ArtifactType): string => (type === 'ppt' ? 'aspect-video bg-[#fff]' : 'aspect-[210/297] bg-[#fff]')

export const pathOf = (id: string) => ({ path: { artifact_id: id } })

const PAGE_SIZE = 40

export function listArtifacts(type: ArtifactType | '', pages: number): Promise<{ items: Artifact[]; hasMore: boolean }> {
  const query = { page_size: PAGE_SIZE, ...(type ? { type } : {}) }
  return firstPages(pages, PAGE_SIZE, (page) => ask(api.GET('/artifacts', { params: { query: { ...query, page } } })))
}

export function listOfConversation(conversationId: string): Promise<Artifact[]> {
  return allPages((page) => ask(api.GET('/artifacts', { params: { query: { conversation_id: conversationId, page, page_size: 100 } } })))
}

export function readArtifact(id: string): Promise<Artifact> {
  return ask(api.GET('/artifacts/{artifact_id}', { params: pathOf(id) }))
}

export function readPreview(id: string, version: number): Promise<Preview> {
  return ask(api.GET('/artifacts/{artifact_id}/preview', { params: { ...pathOf(id), query: { version } } }))
}

export function readContent(id: string, version: number): Promise<Schema<'ArtifactContent'>> {
  return ask(api.GET('/artifacts/{artifact_id}/content', { params: { ...pathOf(id), query: { version } } }))
}

export function listVersions(id: string): Promise<Version[]> {
  return allPages((page) => ask(api.GET('/artifacts/{artifact_id}/versions', { params: { ...pathOf(id), query: { page, page_size: 100 } } })))
}

export function readDiff(id: string, from: number, to: number): Promise<PageDiff[]> {
  return ask(api.GET('/artifacts/{artifact_id}/diff', { params: { ...pathOf(id), query: { from, to } } })).then(({ pages }) => pages)
}

export function saveContent(id: string, body: Schema<'NewContent'>): Promise<Schema<'SavedContent'>> {
  return ask(api.PUT('/artifacts/{artifact_id}/content', { params: pathOf(id), body }))
}

export function restore(id: string, version: number): Promise<Schema<'SavedContent'>> {
  return ask(api.POST('/artifacts/{artifact_id}/restore', { params: pathOf(id), body: { version } }))
}

/** Saves a file of a version on the reader's machine. Diagrams are drawn by the browser. */
export async function download(artifact: Artifact, format: string, version: number): Promise<void> {
  if (artifact.type !== 'diagram' || format !== 'svg') {
    await saveFile(`/artifacts/${artifact.id}/download?format=${format}&version=${version}`, artifact.name, format)
    return
  }
  const { content } = await readContent(artifact.id, version)
  const link = document.createElement('a')
  link.href = (await drawDiagram(content, false)).address
  link.download = `${artifact.name.replaceAll(/[\\/:*?"<>|\s]+/g, '-').slice(0, 80)}.svg`
  link.click()
}

export function useArtifact(id: () => string) {
  return useQuery({ key: () => [...ARTIFACT_KEY, id()], query: () => readArtifact(id()) })
}

/** Loads the gallery again, and an artifact with all that is shown of it. */
export function useArtifactReload() {
  const cache = useQueryCache()
  return async (id?: string): Promise<void> => {
    const keys = [...(id ? [[...ARTIFACT_KEY, id]] : []), GALLERY_KEY]
    await Promise.all(keys.map((key) => cache.invalidateQueries({ key }))).catch(() => undefined)
  }
}

/** Opens an artifact: beside a chat, elsewhere as a page. */
export function useOpening() {
  const route = useRoute()
  const router = useRouter()
  const isBeside = computed(() => route.name === 'chat')
  const targetOf = (id: string) => (isBeside.value ? { path: route.path, query: { ...route.query, artifact: id } } : { path: `/artifacts/${id}` })
  return { isBeside, targetOf, open: (id: string) => router.push(targetOf(id)) }
}
