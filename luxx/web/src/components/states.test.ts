import { expect, test } from 'vitest'
import { LOOKS, sessionState, stateOf } from './states'

test('states of runs, rooms, tasks, steps and calls that mean the same are the same', () => {
  expect(['completed', 'complete', 'ok', 'done'].map(stateOf)).toEqual(['done', 'done', 'done', 'done'])
  expect(['failed', 'error'].map(stateOf)).toEqual(['failed', 'failed'])
  expect(['cancelled', 'terminated', 'partial', 'interrupted'].map(stateOf)).toEqual(Array(4).fill('cancelled'))
  expect(['queued', 'running', 'open', 'waiting', 'paused', 'skipped', 'idle', 'of a newer server'].map(stateOf)).toEqual([
    'queued',
    'running',
    'running',
    'waiting',
    'paused',
    'skipped',
    'pending',
    'pending',
  ])
})

test('no two states that matter look the same', () => {
  const looks = (['running', 'waiting', 'paused', 'done', 'failed', 'cancelled', 'queued'] as const).map((state) => LOOKS[state].icon)
  expect(new Set(looks).size).toBe(looks.length)
})

test('a session waits only if its run waits for the reader; a task that is held up otherwise is paused', () => {
  expect(sessionState('running', false)).toBe('running')
  expect(sessionState('running', true)).toBe('waiting')
  expect(sessionState('block', true)).toBe('waiting')
  expect(sessionState('block', false)).toBe('paused')
  expect(sessionState('error', false)).toBe('failed')
  expect(sessionState('terminated', false)).toBe('cancelled')
})
