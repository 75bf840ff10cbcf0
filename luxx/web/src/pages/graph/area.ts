import { Waypoints } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'graph',
  rail: { icon: Waypoints, label: 'graph', path: '/graph', order: 56, group: 'work' },
  routes: [
    {
      path: '/graph',
      name: 'graph',
      component: () => import('./GraphPage.vue'),
      children: [
        { path: 'all', name: 'graph-all', component: () => import('./WholeView.vue') },
        { path: ':id', name: 'graph-entity', component: () => import('./EntityView.vue'), props: true },
      ],
    },
  ],
})
