import { Cable } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'providers',
  rail: { icon: Cable, label: 'providers', path: '/providers', order: 5, group: 'setup' },
  routes: [
    {
      path: '/providers',
      name: 'providers',
      component: () => import('./ProvidersPage.vue'),
      children: [{ path: ':id(\\d+)', name: 'provider', component: () => import('./ProviderView.vue'), props: true }],
    },
  ],
})
