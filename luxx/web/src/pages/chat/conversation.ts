/** One conversation as its page shows it: messages, the run in progress, and all that a person can do with them. */
import { computed, shallowRef, watch } from 'vue'
import { ApiError, api, ask } from '@/api/client'
import type { SessionState } from '@/api/socket'
import type { Schema } from '@/api/types'
import { useFollowedRun } from '@/run/followedRun'
import { useServerText } from '@/i18n/en/server'
import { useProblem } from '@/components/problem/useProblem'
import { isActive } from '@/components/states'
import type { Conversation } from './conversations'
import { useConversationChanges } from './conversations'
import { type Message, useMessages } from './messages'
import { useQueue, type WhenBusy } from './composer/queue'
import { useTodos } from './composer/todos'

export type AnswerOptions = Schema<'AnswerOptionsBody'>

export interface Draft {
  text: string
  attachments: Schema<'AttachmentBody'>[]
  options: AnswerOptions
  /** A model that answers it too. */
  compareWith?: Schema<'ComparedModelBody'>
  /** The message that it follows; by default the last of the selected branch. */
  parentId?: string
}

/** Why the newest answer is missing or not whole. */
export interface Failure {
  sentence: string
  kind: string
}

/** `target`: the message that is to be shown first. */
export function useConversation(id: () => string | undefined, target: () => string | undefined) {
  const messages = useMessages(() => id() ?? '')
  const changes = useConversationChanges()
  const run = useFollowedRun({ subject: id, onState, onEnd: (error) => void finish(error) })
  const queue = useQueue(id, run)
  const server = useServerText()
  const todos = useTodos(id, run, () => messages.lastId.value ?? '')
  const conversation = shallowRef<Conversation | null>(null)
  const expectedId = shallowRef('')
  const failure = shallowRef<Failure | null>(null)
  const loadError = shallowRef<unknown>(null)
  /** Why the message, or another version of one, was refused; said beside the field for messages. */
  const problem = useProblem()
  /** A message that is being sent. */
  const sending = shallowRef<Draft | null>(null)

  /** The message that was looked for; null: none. An object of its own each time. */
  const found = shallowRef<{ id: string; isThere: boolean } | null>(null)
  /** What is loaded is not yet where the message is. */
  const isFinding = shallowRef(false)

  /** The id of the message that the run in progress writes; empty while it is not known. */
  const liveAnswerId = computed(() => run.live.value.run?.message_id ?? expectedId.value)
  /** The id of the newest message; null before the messages are loaded. */
  const newest = computed(() => messages.tree.value && messages.tree.value.nodes.reduce((found, { id: each }) => (each > found ? each : found), ''))
  const isRunning = computed(() => run.runId.value !== null && !run.live.value.done)
  /** The run answers nothing: it has the older messages summarised. */
  const isCompressing = computed(() => isRunning.value && run.live.value.run?.message_id === null)
  const isBusy = computed(() => sending.value !== null || isRunning.value)

  watch(id, (now, before) => now !== before && void open(), { immediate: true })

  async function open(): Promise<void> {
    run.follow(null)
    messages.reset()
    conversation.value = null
    failure.value = null
    loadError.value = null
    problem.forget()
    found.value = null
    isFinding.value = target() !== undefined
    try {
      if (id() !== undefined) await reload()
      if (loadError.value === null) await find()
    } finally {
      isFinding.value = false
    }
  }

  /** Shows the message that is looked for, or without one the end again. */
  async function find(): Promise<void> {
    const [inside, wanted] = [id(), target()]
    if (inside === undefined || !messages.isLoaded.value) return
    if (wanted === undefined) {
      found.value = null
      if (messages.hasLater.value || messages.viewedLeaf.value !== null) await messages.leaveView()
      return
    }
    const isThere = (await messages.showAround(wanted)) || (await messages.load(), await messages.showAround(wanted))
    if (inside === id() && wanted === target()) found.value = { id: wanted, isThere }
  }

  async function reload(): Promise<void> {
    const wanted = id()
    if (wanted === undefined) return
    try {
      const params = { path: { conversation_id: wanted } }
      const [found] = await Promise.all([ask(api.GET('/conversations/{conversation_id}', { params })), messages.load()])
      if (wanted !== id()) return
      conversation.value = found
      // Each of two answers that are compared follows its own run.
      if (found.comparing_id !== null) run.follow(null)
      else if (found.run_id) attach(found.run_id)
      else await findFailure(wanted)
    } catch (error) {
      if (wanted === id()) loadError.value = error
    }
  }

  /** After an answer that is not whole: why its run ended. */
  async function findFailure(conversationId: string): Promise<void> {
    const last = messages.path.value.at(-1)
    if (!last || (last.role === 'assistant' && last.status === 'complete')) {
      failure.value = null
      return
    }
    const query = { subject_id: conversationId, kind: 'chat' as const, page_size: 1 }
    const ended = (await ask(api.GET('/runs', { params: { query } }))).items[0]
    if (conversationId !== id() || !ended || isActive(ended.status)) return
    const isMine = last.role === 'user' || ended.message_id === last.id
    failure.value = isMine && ended.status === 'failed' && ended.error ? { sentence: ended.error, kind: '' } : null
  }

  /** `answerId`: what its answer will be, where that is known before its first event. */
  function attach(runId: string, answerId = ''): void {
    if (run.runId.value === runId) return
    expectedId.value = answerId
    run.follow(runId)
    failure.value = null
  }

  async function finish(refusal: unknown): Promise<void> {
    const { error, done, run: known } = run.live.value
    const ended = run.runId.value
    if (refusal) {
      run.follow(null)
      loadError.value = refusal
      return
    }
    if (!done) return
    await messages.load().catch(() => undefined)
    if (run.runId.value !== ended) return
    run.follow(null)
    if (known?.message_id !== null) failure.value = error ? { sentence: error.message, kind: error.code } : null
    else if (error) problem.say(server.translate(error.message, error.code))
    await Promise.all([changes.reload(), refreshConversation()])
  }

  async function refreshConversation(): Promise<void> {
    const wanted = id()
    if (wanted === undefined) return
    const params = { path: { conversation_id: wanted } }
    const found = await ask(api.GET('/conversations/{conversation_id}', { params })).catch(() => null)
    if (found && wanted === id()) conversation.value = found
  }

  /** Another tab, or another device, may have sent a message. */
  function onState(state: SessionState | null): void {
    queue.onState(state)
    if (state) todos.onState()
    if (state && conversation.value && state.title !== conversation.value.title) {
      conversation.value = { ...conversation.value, title: state.title }
      void changes.reload()
    }
    if (state?.follow_ups && conversation.value && state.follow_ups.message_id !== conversation.value.follow_ups?.message_id)
      conversation.value = { ...conversation.value, follow_ups: state.follow_ups }
    if (state === null || state.run_id === null || state.run_id === run.runId.value || !messages.isLoaded.value) return
    const isUnknown = state.message_id !== null && !messages.tree.value?.nodes.some((node) => node.id === state.message_id)
    if (isUnknown || isActive(state.status as Schema<'RunStatus'>)) void reload()
  }

  async function start(request: Promise<Schema<'Run'>>, isCompared = false): Promise<void> {
    failure.value = null
    try {
      const started = await request
      if (isCompared) return await reload()
      attach(started.id, started.message_id ?? '')
      await Promise.all([messages.load(), refreshConversation()])
    } catch (error) {
      // Another tab was faster: its run is what there is to see.
      if (error instanceof ApiError && error.kind === 'run_active') await reload()
      throw error
    }
  }

  /** Sends a message. `accepted` is called once the server has it; what follows can still fail. */
  async function send(draft: Draft, accepted: () => void): Promise<void> {
    const parentId = messages.viewedLeaf.value ?? undefined
    await start(
      submit(id() ?? '', { ...draft, parentId }).then((started) => (accepted(), started)),
      draft.compareWith !== undefined,
    )
  }

  /** Sends a message while an answer is made: it waits. One that was written too late for that is sent. */
  async function sendMeanwhile(draft: Draft, whenBusy: WhenBusy, accepted: () => void): Promise<void> {
    const given = await submit(id() ?? '', draft, whenBusy)
    accepted()
    await ('queue_id' in given ? queue.load() : showRun(given))
  }

  /** Shows the run of a message that was accepted while its conversation was not open yet. */
  const showRun = (started: Schema<'Run'>, isCompared = false): Promise<void> => start(Promise.resolve(started), isCompared)

  /** Answers a message of a person once more, or the message of an answer. */
  async function regenerate(messageId: string, options: AnswerOptions = {}): Promise<void> {
    const params = { path: { message_id: messageId } }
    await start(askRun(api.POST('/messages/{message_id}/regenerate', { params, body: options, headers: AS_JSON })))
  }

  /** Has the model summarise the older messages. */
  async function compress(): Promise<void> {
    const params = { path: { conversation_id: id() ?? '' } }
    await start(askRun(api.POST('/conversations/{conversation_id}/compress', { params, headers: AS_JSON })))
  }

  async function edit(messageId: string, content: string, saved: () => void, options: AnswerOptions = {}): Promise<void> {
    const params = { path: { message_id: messageId } }
    const skills = givenFor(messageId)
    const edited = await ask(api.PUT('/messages/{message_id}', { params, body: { content } }))
    saved()
    failure.value = null
    await messages.load()
    if (edited.role === 'user') await regenerate(edited.id, skills.length ? { ...options, skills } : options)
  }

  /** The skills that the person activated for the answer to this message that is shown. */
  function givenFor(messageId: string): string[] {
    const path = messages.path.value
    const answer = path[path.findIndex((message) => message.id === messageId) + 1]
    const given = answer?.steps.filter((step) => step.type === 'user' && step.name === 'skill') ?? []
    return given.map((step) => step.id_ref ?? '')
  }

  async function remove(messageId: string): Promise<void> {
    await ask(api.DELETE('/messages/{message_id}', { params: { path: { message_id: messageId } } }))
    await messages.load()
  }

  /** Shows another branch. */
  async function select(messageId: string): Promise<void> {
    conversation.value = await changes.change(id() ?? '', { selected_leaf_id: messageId })
    failure.value = null
    await messages.load()
  }

  async function stop(): Promise<void> {
    const runId = run.runId.value
    if (runId) await ask(api.POST('/runs/{run_id}/cancel', { params: { path: { run_id: runId } } }))
  }

  return {
    ...messages,
    conversation,
    run,
    queue,
    todos,
    isRunning,
    isCompressing,
    failure,
    problem,
    loadError,
    sending,
    isBusy,
    found,
    isFinding,
    find,
    liveAnswerId,
    newest,
    open,
    refreshConversation,
    send,
    sendMeanwhile,
    showRun,
    regenerate,
    compress,
    edit,
    remove,
    select,
    stop,
  }
}

export type ConversationModel = ReturnType<typeof useConversation>
export type { Message }

/** Raises ApiError if the server refuses the message. */
export function submit(conversationId: string, draft: Draft): Promise<Schema<'Run'>>
export function submit(conversationId: string, draft: Draft, whenBusy: WhenBusy): Promise<Schema<'Run'> | Schema<'QueuedMessage'>>
export function submit(conversationId: string, draft: Draft, whenBusy?: WhenBusy): Promise<Schema<'Run'>> {
  const { text: content, attachments, options, parentId, compareWith } = draft
  if (compareWith && !whenBusy)
    return compare(conversationId, { ...options, content, attachments, parent_id: parentId ?? null, compare_with: compareWith })
  const place = { ...(parentId ? { parent_id: parentId } : {}), ...(whenBusy ? { when_busy: whenBusy } : {}) }
  const body = { ...options, conversation_id: conversationId, content, attachments, ...place }
  return askRun(api.POST('/messages/stream', { body, headers: AS_JSON }))
}

/** The first of the two runs. */
async function compare(
  conversationId: string,
  options: Omit<AnswerOptions, 'planning'> & Omit<Schema<'ComparisonBody'>, keyof AnswerOptions>,
): Promise<Schema<'Run'>> {
  const body = { ...options, skills: options.skills ?? [] }
  const params = { path: { conversation_id: conversationId } }
  const started = await ask(api.POST('/conversations/{conversation_id}/comparison', { params, body }))
  return started.answers[0]!.run
}

const AS_JSON = { accept: 'application/json' }

/** These routes answer with a run, where the client accepts JSON only; their document names the stream. */
function askRun(answered: Promise<{ data?: unknown; error?: unknown; response: Response }>): Promise<Schema<'Run'>> {
  return ask(answered as Promise<{ data?: { data?: Schema<'Run'>; success: true }; error?: unknown; response: Response }>)
}
