import { History } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'runs',
  rail: { icon: History, label: 'runs', path: '/runs', order: 40, group: 'work' },
  routes: [
    {
      path: '/runs',
      name: 'runs',
      component: () => import('./RunsPage.vue'),
      children: [{ path: ':id', name: 'run', component: () => import('./RunView.vue'), props: true }],
    },
  ],
})
