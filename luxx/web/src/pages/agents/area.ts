import { Bot } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'agents',
  rail: { icon: Bot, label: 'agents', path: '/agents', order: 60, group: 'work' },
  routes: [
    {
      path: '/agents',
      name: 'agents',
      component: () => import('./AgentsPage.vue'),
      children: [
        { path: 'new', name: 'agent-new', component: () => import('./AgentView.vue') },
        { path: ':id(\\d+)', name: 'agent', component: () => import('./AgentView.vue'), props: true },
      ],
    },
  ],
})
