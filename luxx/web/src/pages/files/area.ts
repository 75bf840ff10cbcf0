import { Folder } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'files',
  rail: { icon: Folder, label: 'files', path: '/files', order: 50, group: 'work' },
  routes: [{ path: '/files/:path(.*)?', name: 'files', component: () => import('./FilesPage.vue') }],
})
