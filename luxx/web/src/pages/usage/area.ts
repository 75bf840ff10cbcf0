import { ChartColumn } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'usage',
  rail: { icon: ChartColumn, label: 'usage', path: '/usage', order: 20, group: 'setup' },
  routes: [{ path: '/usage', name: 'usage', component: () => import('./UsagePage.vue') }],
})
