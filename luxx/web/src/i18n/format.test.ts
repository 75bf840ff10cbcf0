// @vitest-environment jsdom
import { expect, test } from 'vitest'
import { nearDay } from './format'

test.each([
  ['2026-03-10T00:05:00', 'today'],
  ['2026-03-11T09:00:00', 'today'],
  ['2026-03-09T23:59:00', 'yesterday'],
  ['2026-03-08T00:00:00', 'lastWeek'],
  ['2026-03-03T12:00:00', 'lastWeek'],
  ['2026-03-02T12:00:00', 'lastMonth'],
  ['2026-02-08T12:00:00', 'lastMonth'],
  ['2026-02-07T12:00:00', null],
])('%s belongs to the days: %s', (time, days) => {
  expect(nearDay(time, new Date('2026-03-10T00:10:00'))).toBe(days)
})
