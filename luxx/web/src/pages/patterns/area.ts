import { Route } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'patterns',
  rail: { icon: Route, label: 'patterns', path: '/patterns', order: 66, group: 'setup' },
  routes: [
    {
      path: '/patterns',
      name: 'patterns',
      component: () => import('./PatternsPage.vue'),
      children: [
        { path: 'new', name: 'pattern-new', component: () => import('./PatternView.vue') },
        { path: ':id', name: 'pattern', component: () => import('./PatternView.vue'), props: true },
      ],
    },
  ],
})
