/**
 * Why a typed text was not accepted. The sentence stays beside the text, by `ProblemLine.vue`, until the text is changed
 * or sent again, or a person dismisses the sentence. Forms whose fields have problems of their own use `useForm`.
 */
import { type Ref, ref, watch } from 'vue'

export interface Problem {
  sentence: Ref<string>
  say: (error: unknown) => void
  forget: () => void
}

/** `typed` is what the sentence is about; a change of it removes the sentence. */
export function useProblem(typed: () => unknown = () => ''): Problem {
  const sentence = ref('')
  const forget = (): void => void (sentence.value = '')
  const say = (error: unknown): void => void (sentence.value = error instanceof Error ? error.message : String(error))
  watch(typed, forget, { flush: 'sync' })
  return { sentence, say, forget }
}
