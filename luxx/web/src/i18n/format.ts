/** Numbers, money, durations and times in the chosen language. */
import { useCommonText } from './en/common'
import { locale } from './text'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

/** Creating a formatter costs more than what it formats. */
const counts = new Map<string, Intl.NumberFormat>()

function countFormat(isLarge: boolean): Intl.NumberFormat {
  const key = `${locale()} ${isLarge}`
  const known = counts.get(key)
  if (known) return known
  const created = new Intl.NumberFormat(locale(), isLarge ? { notation: 'compact', maximumFractionDigits: 1 } : {})
  counts.set(key, created)
  return created
}

/** 950, 12.4k, 1.2M. */
export function formatCount(value: number): string {
  // The short form of a million is a small m in British English, which reads as metres or minutes.
  return countFormat(value >= 10_000)
    .format(value)
    .replace(/m$/, 'M')
}

export function formatCost(dollars: number): string {
  if (dollars === 0) return '$0'
  if (dollars < 0.0001) return '< $0.0001'
  const digits = dollars < 0.01 ? 4 : dollars < 1 ? 3 : 2
  return `$${dollars.toFixed(digits)}`
}

/** 240 ms, 1.3 s, 2 min 5 s. */
export function formatDuration(ms: number): string {
  const { durations } = useCommonText()
  if (ms < 1000) return durations.ms(Math.round(ms))
  if (ms < MINUTE) return durations.s((ms / 1000).toFixed(ms < 10_000 ? 1 : 0))
  if (ms < HOUR) return durations.min(Math.floor(ms / MINUTE), Math.floor((ms % MINUTE) / 1000))
  return durations.h(Math.floor(ms / HOUR), Math.floor((ms % HOUR) / MINUTE))
}

/** Just now, 5 minutes ago, yesterday, 3 Nov 2026. */
export function formatRelative(iso: string, now = Date.now()): string {
  const age = now - Date.parse(iso)
  if (age < MINUTE) return useCommonText().justNow
  const relative = new Intl.RelativeTimeFormat(locale(), { numeric: 'auto', style: 'short' })
  if (age < HOUR) return relative.format(-Math.floor(age / MINUTE), 'minute')
  if (age < DAY) return relative.format(-Math.floor(age / HOUR), 'hour')
  if (age < 7 * DAY) return relative.format(-Math.floor(age / DAY), 'day')
  return formatDay(new Date(iso))
}

/** A time in sight: tomorrow, 15:00 or 3 Nov, 15:00; with the year where it is another one. */
export function formatMoment(iso: string, now = new Date()): string {
  const time = new Date(iso)
  const days = daysBetween(now, time)
  const clock = new Intl.DateTimeFormat(locale(), { hour: '2-digit', minute: '2-digit' }).format(time)
  const isNear = Math.abs(days) <= 1
  const year = time.getFullYear() === now.getFullYear() ? {} : ({ year: 'numeric' } as const)
  const day = isNear
    ? new Intl.RelativeTimeFormat(locale(), { numeric: 'auto' }).format(days, 'day')
    : new Intl.DateTimeFormat(locale(), { day: 'numeric', month: 'short', ...year }).format(time)
  return `${day} ${clock}`
}

function daysBetween(one: Date, other: Date): number {
  const midnight = (day: Date): number => new Date(day.getFullYear(), day.getMonth(), day.getDate()).getTime()
  return Math.round((midnight(other) - midnight(one)) / DAY)
}

/** Which days of the last thirty a time belongs to; null: it is longer ago. */
export function nearDay(iso: string, now = new Date()): 'today' | 'yesterday' | 'lastWeek' | 'lastMonth' | null {
  const days = daysBetween(new Date(iso), now)
  if (days <= 0) return 'today'
  if (days === 1) return 'yesterday'
  return days <= 7 ? 'lastWeek' : days <= 30 ? 'lastMonth' : null
}

/** November 2026. */
export function formatMonth(day: Date): string {
  return new Intl.DateTimeFormat(locale(), { month: 'long', year: 'numeric' }).format(day)
}

/** 3 Nov 2026. */
export function formatDay(day: Date): string {
  return new Intl.DateTimeFormat(locale(), { dateStyle: 'medium' }).format(day)
}

export function formatExact(iso: string): string {
  return new Intl.DateTimeFormat(locale(), { dateStyle: 'full', timeStyle: 'medium' }).format(new Date(iso))
}

export function formatBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB']
  let size = bytes
  let unit = 0
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000
    unit += 1
  }
  return `${unit === 0 ? size : size.toFixed(size < 10 ? 1 : 0)} ${units[unit]}`
}

/** A text without the marks around code. */
export function withoutMarks(text: string): string {
  return text.replaceAll('`', '')
}

/** How wide a text is, in letters; a Chinese character is as wide as two. */
export function widthOf(text: string): number {
  return [...text].reduce((sum, character) => sum + (character > '\u2e7f' ? 2 : 1), 0)
}
