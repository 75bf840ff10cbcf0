import { SquareSlash } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'prompts',
  rail: { icon: SquareSlash, label: 'prompts', path: '/prompts', order: 65, group: 'setup' },
  routes: [
    {
      path: '/prompts',
      name: 'prompts',
      component: () => import('./PromptsPage.vue'),
      children: [
        { path: 'new', name: 'prompt-new', component: () => import('./PromptEditor.vue') },
        { path: ':id', name: 'prompt', component: () => import('./PromptEditor.vue'), props: true },
      ],
    },
  ],
})
