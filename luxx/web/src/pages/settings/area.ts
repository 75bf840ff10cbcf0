import { Settings } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'settings',
  rail: { icon: Settings, label: 'settings', path: '/settings', order: 80, group: 'setup' },
  routes: [
    {
      path: '/settings',
      component: () => import('./SettingsPage.vue'),
      children: [
        { path: '', name: 'settings', component: () => import('./AccountSection.vue') },
        { path: 'account', component: () => import('./AccountSection.vue') },
        { path: 'appearance', component: () => import('./AppearanceSection.vue') },
        { path: 'defaults', component: () => import('./DefaultsSection.vue') },
        { path: 'keys', component: () => import('./KeysSection.vue') },
        { path: 'links', component: () => import('./LinksSection.vue') },
        { path: 'shortcuts', component: () => import('./ShortcutsSection.vue') },
      ],
    },
  ],
})
