import { Users } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'rooms',
  rail: { icon: Users, label: 'rooms', path: '/rooms', order: 20, group: 'work' },
  routes: [
    {
      path: '/rooms',
      name: 'rooms',
      component: () => import('./RoomsPage.vue'),
      children: [
        { path: 'new', name: 'room-new', component: () => import('./NewRoomView.vue') },
        { path: ':id', name: 'room', component: () => import('./RoomView.vue'), props: true },
      ],
    },
  ],
})
