/**
 * What waits for a person, in every area, and what else happened in sessions that one does not look at. All of it comes
 * by events of the socket; after a lost connection it is read once.
 */
import { computed, onScopeDispose, ref, shallowRef, watch } from 'vue'
import { useRoute, useRouter } from 'vue-router'
import { api, ask } from '@/api/client'
import { useReload } from '@/api/queries'
import { isSocketOpen, type Notification, onNotification, onState, type SessionState, subscribe } from '@/api/socket'
import type { Schema } from '@/api/types'
import { stateOf } from '@/components/states'
import { useCommonText } from '@/i18n/en/common'
import { useNoticesText } from '@/i18n/en/notices'
import { useServerText } from '@/i18n/en/server'
import { useNotices } from '@/stores/notices'
import { alertReader } from './alerts'
import { keyOf } from './dismissed'

export const AREA_OF_KIND = {
  chat: 'chat',
  room: 'rooms',
  task: 'tasks',
  memory: 'memories',
  index: 'runs',
  artifact: 'files',
  pattern: 'runs',
  title: 'chat',
  follow_ups: 'chat',
} as const
/** Invalidated when something new is in a list of the area. */
const LISTS = {
  chat: ['conversations'],
  room: ['rooms'],
  task: ['tasks'],
  memory: ['memories'],
  index: ['runs'],
  artifact: ['artifacts'],
  pattern: ['runs'],
  title: ['conversations'],
  follow_ups: ['conversations'],
} as const
const ENDS = new Set(['completed', 'failed', 'cancelled'])

/** A run that waits for the reader. */
export interface Wait {
  run: Schema<'Run'>
  title: string
  questions: Schema<'QuestionView'>[]
  /** The room or task, where the run belongs to one. */
  room: Schema<'RoomDetail'> | null
  task: Schema<'TaskView'> | null
}

/** The newest first. */
export const waits = shallowRef<readonly Wait[]>([])
/** Whether a run of the conversation, room or task waits for the reader. */
export function isWaitedFor(sessionId: string): boolean {
  return waits.value.some(({ run }) => run.subject_id === sessionId)
}

/** Whether what waits was read once. */
export const areWaitsRead = ref(false)
/** Rooms with messages that were not looked at yet. */
export const unseen = ref<ReadonlySet<string>>(new Set())

/** By the name of an area. */
export const waitingCounts = computed(() => {
  const counts: Record<string, number> = {}
  for (const { run } of waits.value) counts[AREA_OF_KIND[run.kind]] = (counts[AREA_OF_KIND[run.kind]] ?? 0) + 1
  return counts
})

export function addressOf(kind: keyof typeof AREA_OF_KIND, sessionId: string): string {
  if (kind === 'index') return '/runs'
  if (kind === 'artifact') return `/artifacts/${sessionId}`
  return kind === 'memory' ? '/memories' : `/${AREA_OF_KIND[kind]}/${sessionId}`
}

let reading: Promise<void> | null = null
let isDue = false

/** Reads what waits; calls during a read lead to one more. */
export async function refreshWaits(): Promise<void> {
  isDue = true
  reading ??= readAll().finally(() => {
    reading = null
  })
  return reading
}

async function readAll(): Promise<void> {
  while (isDue) {
    isDue = false
    const found = await ask(api.GET('/runs', { params: { query: { status: 'waiting', page_size: 100 } } }))
    const known = new Map(waits.value.map((wait) => [keyOf(wait.run), wait]))
    const read = await Promise.all(found.items.map((run) => known.get(keyOf(run)) ?? readWait(run).catch(() => null)))
    waits.value = read.filter((wait) => wait !== null)
    areWaitsRead.value = true
  }
}

/** Null where another person is waited for. */
async function readWait(run: Schema<'TitledRun'>): Promise<Wait | null> {
  const { kind, subject_id: id } = run
  const params = { path: { run_id: run.id }, query: { page_size: 100 } }
  const questions = ask(api.GET('/runs/{run_id}/questions', { params })).then(({ items }) => items.filter((question) => question.status === 'open'))
  const room = kind === 'room' ? await ask(api.GET('/chat-rooms/{room_id}', { params: { path: { room_id: id } } })) : null
  const task = kind === 'task' ? await ask(api.GET('/tasks/{task_id}', { params: { path: { task_id: id } } })) : null
  if (room && room.right !== 'owner' && room.right !== 'steer') return null
  return { run, title: run.title ?? '', questions: await questions, room, task }
}

/** Follows what waits and what happens elsewhere, while the component that calls this is there. */
export function followWaits(): void {
  const common = useCommonText()
  const text = useNoticesText()
  const server = useServerText()
  const notices = useNotices()
  const route = useRoute()
  const router = useRouter()
  const reloadQueries = useReload()
  /** Sessions whose runs began to wait, until these end. */
  const followed = new Map<string, () => void>()
  /** Runs whose end was shown: after a crash the server may send it again. */
  const shown = new Set<string>()
  /** Runs of whose end the reader was told outside of the page. */
  const alerted = new Set<string>()
  /** Rooms whose membership was announced to the reader. */
  const announced = new Set<string>()

  const refresh = (): void => void refreshWaits().catch(() => undefined)

  function follow({ run, title }: Wait): void {
    if (followed.has(run.subject_id)) return
    const onState = (state: SessionState | null): void => {
      if (state?.status === 'waiting' || waits.value.some((wait) => wait.run.subject_id === run.subject_id)) {
        const isKnown = waits.value.some(({ run: { id, last_seq } }) => id === state?.run_id && last_seq === state.waiting_seq)
        if (!isKnown) refresh()
      }
      if (state && !ENDS.has(state.status)) return
      followed.get(run.subject_id)?.()
      followed.delete(run.subject_id)
      if (state?.run_id) showEnd(run.kind, run.subject_id, { ...state, title: state.title || title, run_id: state.run_id })
    }
    followed.set(run.subject_id, subscribe(run.subject_id, onState))
  }

  function showEnd(
    kind: Schema<'Run'>['kind'],
    sessionId: string,
    { run_id: runId, status, title, error }: { run_id: string; status: string; title: string; error?: string | null },
    artifactId?: string,
  ): void {
    const place = addressOf(kind, sessionId)
    if (status !== 'completed' && status !== 'failed' && status !== 'paused') return
    if (!alerted.has(runId)) {
      alerted.add(runId)
      const body = common.states[stateOf(status)]
      alertReader({ title, body, tag: runId }, () => void router.push(place))
    }
    if (place === route.path) return
    if (status !== 'paused') {
      if (shown.has(runId)) return
      shown.add(runId)
    }
    const reason = server.translate((error ?? '').replace(/^The (answer|room|task|page) (failed|was not written): /, ''))
    // Of a run that made an artifact: beside its chat, or as a page.
    const isMade = artifactId && kind !== 'artifact' && status === 'completed'
    const to = !isMade ? place : kind === 'chat' ? `${place}?artifact=${artifactId}` : addressOf('artifact', artifactId)
    const ended = text.ended[status === 'paused' ? 'paused' : isMade ? 'made' : kind]
    const sentence = status === 'failed' ? text.failed(reason) : ended
    notices.show({ kind: stateOf(status), text: common.labelled(title, sentence), to, runId })
  }

  function onNotified(notification: Notification): void {
    const { kind, title, session_id: id, session_kind: sessionKind = 'chat', run_id: runId, status, sender } = notification
    void reloadQueries(LISTS[sessionKind])
    const to = addressOf(sessionKind, id)
    if (kind === 'message') {
      unseen.value = new Set([...unseen.value, id])
      notices.show({ kind: 'info', text: common.labelled(title, text.wrote(sender ?? '')), to, runId: id })
    } else if (kind === 'member') {
      // The server tells it to each new socket until the messages of the room are read.
      if (announced.has(id) || to === route.path) return
      announced.add(id)
      notices.show({ kind: 'info', text: common.labelled(title, text.invited(sender ?? '')), to, runId: id })
    } else if (status === 'waiting') {
      refresh()
    } else if (runId) {
      const error = status === 'failed' ? notification.message : null
      showEnd(sessionKind, id, { run_id: runId, status, title, error }, notification.artifact_id)
    }
  }

  const stops = [
    onNotification(onNotified),
    watch(waits, (now, before) => {
      now.forEach(follow)
      const known = new Set(before.map(({ run }) => keyOf(run)))
      for (const { run, title } of now) {
        if (known.has(keyOf(run))) continue
        alertReader({ title, body: common.states.waiting, tag: run.id }, () => void router.push(addressOf(run.kind, run.subject_id)))
      }
    }),
    watch(
      () => route.path,
      (path) => {
        const id = path.split('/')[2] ?? ''
        if (unseen.value.has(id)) unseen.value = new Set([...unseen.value].filter((each) => each !== id))
      },
      { immediate: true },
    ),
    onState((state) => {
      if (state.status === 'waiting' && !waits.value.some(({ run }) => run.id === state.run_id && run.last_seq === state.waiting_seq)) refresh()
    }),
  ]
  let wasOpen = false
  watch(
    isSocketOpen,
    (isOpen) => {
      if (!isOpen) return
      refresh()
      if (wasOpen) void reloadQueries()
      wasOpen = true
    },
    { immediate: true },
  )
  refresh()
  onScopeDispose(() => {
    for (const stop of [...stops, ...followed.values()]) stop()
    waits.value = []
    areWaitsRead.value = false
    unseen.value = new Set()
  })
}
