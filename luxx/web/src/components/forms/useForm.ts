/** Sends a form: while it is busy, and what the server refuses, by field or as a sentence. */
import { computed, type ComputedRef, type Ref, ref, shallowRef } from 'vue'
import { ApiError } from '@/api/client'

export interface Form {
  isBusy: Ref<boolean>
  /** The problem of a field of the body. */
  problem: (field: string) => string
  /** The refusal in words; in `refusal` only where no field of the body is wrong. */
  message: ComputedRef<string>
  refusal: ComputedRef<string>
  /** The kind of the refusal. */
  kind: ComputedRef<string>
  reset: () => void
  /** Returns whether the work succeeded. */
  send: (work: () => Promise<unknown>) => Promise<boolean>
}

export function useForm(): Form {
  const isBusy = ref(false)
  const error = shallowRef<ApiError | null>(null)
  const message = computed(() => error.value?.message ?? '')
  const refusal = computed(() => (Object.keys(error.value?.fields ?? {}).length === 0 ? message.value : ''))

  function problem(field: string): string {
    return error.value?.fields[`$.${field}`] ?? ''
  }

  function reset(): void {
    error.value = null
  }

  async function send(work: () => Promise<unknown>): Promise<boolean> {
    isBusy.value = true
    error.value = null
    try {
      await work()
      return true
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught
      error.value = caught
      return false
    } finally {
      isBusy.value = false
    }
  }

  return { isBusy, problem, message, refusal, kind: computed(() => error.value?.kind ?? ''), reset, send }
}
