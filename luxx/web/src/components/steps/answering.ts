/**
 * Whether the reader may answer the questions that a page shows: also with a rule (`always`), once, or not at all;
 * `past`: the page shows a moment of a run that is over.
 */
import { inject, type InjectionKey, provide, ref, type Ref } from 'vue'

export type AnswerRight = 'always' | 'once' | 'none' | 'past'

const RIGHT: InjectionKey<Readonly<Ref<AnswerRight>>> = Symbol('answer right')

export function provideAnswerRight(right: Readonly<Ref<AnswerRight>>): void {
  provide(RIGHT, right)
}

/** Where no page says otherwise, the runs are the reader's own. */
export function useAnswerRight(): Readonly<Ref<AnswerRight>> {
  return inject(RIGHT, () => ref<AnswerRight>('always'), true)
}
