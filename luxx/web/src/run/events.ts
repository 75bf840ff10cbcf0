/** The events of runs, with the types of the OpenAPI document. */
import type { Schema } from '@/api/types'

export type Step = Schema<'Step'>
/** A frame of a growing step has `delta`, or in a snapshot the `content` so far. */
export type StepFrame = Step & { delta?: string }

type Logged =
  | Schema<'CostUpdate'>
  | Schema<'Retrying'>
  | Schema<'ContextCompressed'>
  | Schema<'MemoryRecalled'>
  | Schema<'Warning'>
  | Schema<'DoomLoopDetected'>
  | Schema<'DoomLoopIntervened'>
  | Schema<'Verdict'>
  | Schema<'QuestionAsked'>
  | Schema<'QuestionAnswered'>
  | Schema<'Tainted'>
  | Schema<'MembersEnded'>
  | Schema<'SkillActivated'>
  | Schema<'SubagentAssigned'>
  | Schema<'PlanUpdated'>
  | Schema<'UiCommand'>
  | Schema<'ArtifactUpdated'>
  | Schema<'ErrorEvent'>
  | Schema<'Done'>
  | Schema<'RoomStarted'>
  | Schema<'RoundStart'>
  | Schema<'RoundEnd'>
  | Schema<'MessageStart'>
  | Schema<'MessageEnd'>
  | Schema<'MessageStored'>
  | Schema<'Selecting'>
  | Schema<'FloorGiven'>
  | Schema<'Steered'>
  | Schema<'AgentError'>
  | Schema<'RoomPaused'>
  | Schema<'RoomCompleted'>
  | Schema<'Planning'>
  | Schema<'PlanCreated'>
  | Schema<'StepStart'>
  | Schema<'StepComplete'>
  | Schema<'StepSkipped'>
  | Schema<'TaskPaused'>
  | Schema<'TaskComplete'>
  | Schema<'EpisodeStart'>
  | Schema<'EpisodeSynced'>
  | Schema<'EntitiesMerged'>
  | Schema<'FactsRetired'>
  | Schema<'CommunitiesUpdated'>
  | Schema<'MemoryComplete'>
  | Schema<'PatternComplete'>
  | Schema<'TitleComplete'>
  | Schema<'FollowUpsComplete'>
  | Schema<'PatternUsed'>
  | Schema<'DocumentParsed'>
  | Schema<'Embedded'>
  | Schema<'IndexComplete'>

/** The growing text of a message in a room; never in the log. */
export interface MessageChunk {
  type: 'message_chunk'
  run_id: string
  timestamp: string
  msg_id: string
  content: string
  is_snapshot?: boolean
}

export type ProcessStep = Omit<Schema<'ProcessStep'>, 'step'> & { step: StepFrame }
export type RunEvent = Schema<'RunSnapshot'> | ProcessStep | MessageChunk | Logged

const LAST = new Set([
  'done',
  'room_completed',
  'room_paused',
  'task_complete',
  'task_paused',
  'memory_complete',
  'index_complete',
  'pattern_complete',
  'title_complete',
  'follow_ups_complete',
])

/** Whether the server closes the stream after this event: the run ended or paused. */
export function endsStream(event: RunEvent): boolean {
  return LAST.has(event.type)
}
