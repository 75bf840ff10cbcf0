import { Wrench } from 'lucide-vue-next'
import { defineArea } from '@/frame/areas'

export default defineArea({
  name: 'tools',
  rail: { icon: Wrench, label: 'tools', path: '/tools', order: 10, group: 'setup' },
  routes: [
    {
      path: '/tools',
      component: () => import('./ToolsPage.vue'),
      children: [
        { path: '', name: 'tools', component: () => import('./ToolsSection.vue') },
        { path: 'all', component: () => import('./ToolsSection.vue') },
        { path: 'rules', component: () => import('./RulesSection.vue') },
        { path: 'compositions', component: () => import('./CompositionsSection.vue') },
        { path: 'skills', component: () => import('./SkillsSection.vue') },
        { path: 'skills/new', component: () => import('./SkillDetail.vue') },
        { path: 'skills/:id', component: () => import('./SkillDetail.vue'), props: true },
        { path: 'mcp', component: () => import('./mcp/McpPage.vue') },
        { path: 'mcp/:name', component: () => import('./mcp/ServerView.vue'), props: true },
      ],
    },
  ],
})
