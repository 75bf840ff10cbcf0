import { Library } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'knowledge',
  rail: { icon: Library, label: 'knowledge', path: '/knowledge', order: 57, group: 'work' },
  routes: [
    {
      path: '/knowledge',
      name: 'knowledge-bases',
      component: () => import('./KnowledgePage.vue'),
      children: [
        { path: 'new', name: 'knowledge-new', component: () => import('./BaseForm.vue') },
        { path: ':id', name: 'knowledge', component: () => import('./BaseView.vue'), props: true },
        { path: ':id/:documentId', name: 'knowledge-document', component: () => import('./DocumentView.vue'), props: true },
      ],
    },
  ],
})
