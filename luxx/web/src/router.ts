/** The addresses of the UI. Each folder of `pages/` adds its own with an `area.ts`. */
import { createRouter, createWebHistory } from 'vue-router'
// First: it takes the answer to a sign-in off the address, before the router reads that.
import '@/api/mcpAnswer'
import { isOtherPerson, isSignedIn } from '@/api/tokens'
import { areas } from '@/frame/areas'
import { textsReady } from '@/i18n/text'

declare module 'vue-router' {
  interface RouteMeta {
    isSignedIn?: boolean
  }
}

export const router = createRouter({
  history: createWebHistory('/ui/'),
  routes: [
    { path: '/', redirect: '/chat' },
    { path: '/sign-in', name: 'sign-in', component: () => import('@/pages/sign-in/SignInPage.vue') },
    { path: '/mcp/callback', name: 'mcp-callback', component: () => import('@/pages/mcp-callback/McpCallbackPage.vue') },
    { path: '/s/:token', name: 'shared', component: () => import('@/pages/shared/SharedPage.vue'), props: true },
    ...areas.flatMap((area) => area.routes.map((route) => ({ ...route, meta: { ...route.meta, isSignedIn: true } }))),
    { path: '/:path(.*)*', name: 'missing', component: () => import('@/pages/MissingPage.vue'), meta: { isSignedIn: true } },
  ],
})

router.beforeEach((to) => {
  if (to.meta.isSignedIn && !isSignedIn()) {
    const query = to.fullPath === '/chat' ? {} : { to: to.fullPath }
    return { name: 'sign-in', query }
  }
  if (to.name === 'sign-in' && isSignedIn()) return targetAfterSignIn(to.query.to)
  return true
})

router.beforeResolve(textsReady)

/** Loads the page anew for another person, so that nothing of the first one stays in memory. */
export async function openAfterSignIn(path: string): Promise<void> {
  if (isOtherPerson()) window.location.assign(router.resolve(path).href)
  else await router.replace(path)
}

/** Only an address within the UI. */
export function targetAfterSignIn(wanted: unknown): string {
  return typeof wanted === 'string' && /^\/(?![/\\])/.test(wanted) ? wanted : '/chat'
}
