/** Sends a form: while it is busy, and what the server refuses, by field or as a sentence. */
import { computed, type ComputedRef, type Ref, ref, shallowRef } from 'vue'
import { ApiError } from '@/api/client'

export interface Form {
  isBusy: Ref<boolean>
  /** The problem of a field of the body. */
  problem: (field: string) => string
  /** The refusal as a whole, where no field of the body is wrong, and its kind. */
  refusal: ComputedRef<string>
  kind: ComputedRef<string>
  reset: () => void
  /** Returns whether the work succeeded. */
  send: (work: () => Promise<unknown>) => Promise<boolean>
}

export function useForm(): Form {
  const isBusy = ref(false)
  const error = shallowRef<ApiError | null>(null)
  const refusal = computed(() => (error.value && Object.keys(error.value.fields).length === 0 ? error.value.message : ''))

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

  return { isBusy, problem, refusal, kind: computed(() => error.value?.kind ?? ''), reset, send }
}
