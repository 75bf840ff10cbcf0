/** What only some steps have, loaded when the first of them is shown. */
import { defineAsyncComponent } from 'vue'

export const QuestionCard = defineAsyncComponent(() => import('./QuestionCard.vue'))
export const StepFiles = defineAsyncComponent(() => import('./StepFiles.vue'))
export const ToolViews = defineAsyncComponent(() => import('@/components/tools/ToolViews.vue'))
