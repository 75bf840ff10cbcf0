import { MessageSquare } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'chat',
  rail: { icon: MessageSquare, label: 'chat', path: '/chat', order: 10, group: 'work' },
  routes: [
    {
      path: '/chat',
      component: () => import('./ChatPage.vue'),
      children: [
        { path: '', name: 'chat-new', component: () => import('./ConversationView.vue') },
        { path: ':id', name: 'chat', component: () => import('./ConversationView.vue'), props: true },
      ],
    },
  ],
})
