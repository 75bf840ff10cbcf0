/** The members of a knowledge base, as the dialog of members reads and changes them. */
import { computed } from 'vue'
import { api, ask } from '@/api/client'
import type { Schema } from '@/api/types'
import type { Members } from '@/components/lists/MembersDialog.vue'
import { useKnowledgeText } from '@/i18n/en/knowledge'
import { pathOf } from './knowledge'

type Right = Schema<'DocumentRight'>
const RIGHTS: readonly Right[] = ['read', 'write']

export function useMembers(baseId: () => string) {
  const text = useKnowledgeText()
  const pathOfMember = (userId: number) => ({ path: { base_id: baseId(), user_id: userId } })

  return computed<Members>(() => ({
    key: `knowledge-members:${baseId()}`,
    rights: RIGHTS.map((value) => ({ value, label: text.rights[value], hint: text.rightsHint[value] })),
    proposed: 'read',
    description: text.membersHint,
    leaveLabel: text.leave,
    list: async () => {
      const params = { ...pathOf(baseId()), query: { page_size: 100 } }
      return (await ask(api.GET('/knowledge/{base_id}/members', { params }))).items
    },
    add: (username, right) => {
      const body = { username, right: right as Right }
      return ask(api.POST('/knowledge/{base_id}/members', { params: pathOf(baseId()), body }))
    },
    change: (userId, right) => {
      const body = { right: right as Right }
      return ask(api.PUT('/knowledge/{base_id}/members/{user_id}', { params: pathOfMember(userId), body }))
    },
    remove: (userId) => ask(api.DELETE('/knowledge/{base_id}/members/{user_id}', { params: pathOfMember(userId) })),
  }))
}
