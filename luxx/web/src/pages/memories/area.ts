import { Brain } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'memories',
  rail: { icon: Brain, label: 'memory', path: '/memories', order: 55, group: 'work' },
  routes: [
    {
      path: '/memories',
      name: 'memories',
      component: () => import('./MemoriesPage.vue'),
      children: [
        { path: 'new', name: 'memory-new', component: () => import('./MemoryView.vue') },
        { path: ':id', name: 'memory', component: () => import('./MemoryView.vue'), props: true },
      ],
    },
  ],
})
