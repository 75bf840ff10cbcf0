/** A list whose rows are added and edited in a dialog, and deleted after a question (`ConfirmDialog`). */
import { type ComputedRef, type Ref, ref, type ShallowRef, shallowRef } from 'vue'
import { useDraft } from '@/components/forms/useDraft'
import { type Form, useForm } from '@/components/forms/useForm'

interface Rows<T, D> {
  /** The name of its drafts, such as `tenants`. */
  name: string
  /** What the dialog begins with, for a row or (null) for a new one. */
  draftOf: (row: T | null) => D
  save: (row: T | null, draft: D) => Promise<T>
  remove: (row: T) => Promise<unknown>
  refetch: () => Promise<unknown>
}

export interface RowEditor<T, D> {
  /** Whether the dialog is open, for which row (null: a new one), and what is typed into it. */
  isOpen: Ref<boolean>
  edited: ShallowRef<T | null>
  draft: Ref<D>
  isBusy: Ref<boolean>
  problem: Form['problem']
  refusal: ComputedRef<string>
  edit: (row: T | null) => void
  close: () => void
  save: () => Promise<void>
  /** The row that a person is asked about before it is deleted. */
  removed: ShallowRef<T | null>
  remove: (row: T) => Promise<void>
}

export function useRowEditor<T extends { id: number | string }, D>(rows: Rows<T, D>): RowEditor<T, D> {
  const { isBusy, problem, refusal, reset, send } = useForm()
  const isOpen = ref(false)
  const edited: ShallowRef<T | null> = shallowRef(null)
  const removed: ShallowRef<T | null> = shallowRef(null)
  const {
    value: draft,
    discard,
    submit,
  } = useDraft(
    () => (isOpen.value ? `${rows.name}:${edited.value?.id ?? 'new'}` : ''),
    () => rows.draftOf(edited.value),
  )

  function edit(row: T | null): void {
    reset()
    edited.value = row
    isOpen.value = true
  }

  function close(): void {
    discard()
    isOpen.value = false
  }

  async function save(): Promise<void> {
    const row = edited.value
    const stored = submit()
    await send(async () => {
      const saved = await rows.save(row, draft.value)
      isOpen.value = row ? stored() : stored({ key: `${rows.name}:${saved.id}`, fresh: rows.draftOf(saved) })
      edited.value = saved
      await rows.refetch()
    })
  }

  async function remove(row: T): Promise<void> {
    try {
      await rows.remove(row)
    } finally {
      await rows.refetch()
    }
  }

  return { isOpen, edited, draft, isBusy, problem, refusal, edit, close, save, removed, remove }
}
