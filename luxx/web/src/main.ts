import '@/style/base.css'
import { PiniaColada } from '@pinia/colada'
import { createPinia } from 'pinia'
import { createApp } from 'vue'
import App from '@/App.vue'
import { router } from '@/router'

createApp(App)
  .use(createPinia())
  .use(PiniaColada, { queryOptions: { staleTime: 5_000 } })
  .use(router)
  .mount('#app')

// Browsers offer it on https and on this machine only. Without it, the browser's own page says that there is no server.
if (import.meta.env.PROD && 'serviceWorker' in navigator) {
  window.addEventListener('load', () => void navigator.serviceWorker.register('/ui/sw.js').catch(() => undefined))
}
