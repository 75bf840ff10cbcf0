/** The states of a run that has ended, after each event of its log. */
import type { RunEvent } from './events'
import { reduce } from './reducer'
import { EMPTY, type RunState } from './state'

/** A state is kept for every so many events; states share what is equal, so a kept one costs little. */
const SPACING = 64

export class RunHistory {
  readonly events: readonly RunEvent[]
  private readonly kept: RunState[] = [EMPTY]

  constructor(events: readonly RunEvent[]) {
    this.events = events
    let state = EMPTY
    events.forEach((event, index) => {
      state = reduce(state, event, index + 1)
      if ((index + 1) % SPACING === 0) this.kept.push(state)
    })
  }

  /** The state after the first `count` events. */
  stateAt(count: number): RunState {
    const wanted = Math.max(0, Math.min(count, this.events.length))
    const from = Math.floor(wanted / SPACING)
    let state = this.kept[from] ?? EMPTY
    for (let index = from * SPACING; index < wanted; index++) {
      state = reduce(state, this.events[index] as RunEvent, index + 1)
    }
    return state
  }

  /** Milliseconds from the first event to the event of this number, which begins at 1. */
  offsetAt(count: number): number {
    const [first] = this.events
    const event = this.events[count - 1]
    return first && event ? Math.max(0, timeOf(event) - timeOf(first)) : 0
  }
}

function timeOf(event: RunEvent): number {
  return Date.parse(event.timestamp)
}
