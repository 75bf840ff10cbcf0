import { Workflow } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'tasks',
  rail: { icon: Workflow, label: 'tasks', path: '/tasks', order: 30, group: 'work' },
  routes: [
    {
      path: '/tasks',
      name: 'tasks',
      component: () => import('./TasksPage.vue'),
      children: [
        { path: 'new', name: 'task-new', component: () => import('./NewTaskView.vue') },
        { path: ':id', name: 'task', component: () => import('./TaskView.vue'), props: true },
      ],
    },
  ],
})
