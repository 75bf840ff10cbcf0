/** Whether runs of the reader may have a skill. */
import type { Schema } from '@/api/types'

export type Skill = Schema<'SkillView'>
export type SkillState = 'ready' | 'disabled' | 'hidden' | 'unreviewed' | 'unusable'

/** Why runs may not have it; one that is not reviewed is for runs of its owner. */
export function skillState(skill: Skill): SkillState {
  if (skill.problem) return 'unusable'
  if (skill.is_disabled || !skill.enabled) return 'disabled'
  if (skill.is_overridden) return 'hidden'
  return skill.is_reviewed ? 'ready' : 'unreviewed'
}

/** Whether a run of the reader may have it. */
export function isUsable(skill: Skill): boolean {
  const state = skillState(skill)
  return state === 'ready' || (state === 'unreviewed' && skill.is_own)
}
