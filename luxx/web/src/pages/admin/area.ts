import { ShieldUser } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'
import { ADMIN_LEVEL } from '@/stores/session'

export default defineArea({
  name: 'admin',
  rail: { icon: ShieldUser, label: 'admin', path: '/admin', order: 90, group: 'setup', level: ADMIN_LEVEL },
  routes: [
    {
      path: '/admin',
      component: () => import('./AdminPage.vue'),
      children: [
        { path: '', name: 'admin', component: () => import('./UsersSection.vue') },
        { path: 'users', component: () => import('./UsersSection.vue') },
        { path: 'tenant', component: () => import('./TenantSection.vue') },
        { path: 'tenants', component: () => import('./TenantsSection.vue') },
        { path: 'hosts', component: () => import('./HostsSection.vue') },
        { path: 'audit', component: () => import('./AuditSection.vue') },
        { path: 'processes', component: () => import('./ProcessesSection.vue') },
        { path: 'server', component: () => import('./ServerSection.vue') },
      ],
    },
  ],
})
