import { Folder } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'files',
  rail: { icon: Folder, label: 'files', path: '/files', order: 50, group: 'work' },
  routes: [
    { path: '/files/:path(.*)?', name: 'files', component: () => import('./FilesPage.vue') },
    { path: '/artifacts', name: 'artifacts', component: () => import('./GalleryPage.vue') },
    { path: '/artifacts/:id', name: 'artifact', component: () => import('./ArtifactPage.vue'), props: true },
  ],
})
