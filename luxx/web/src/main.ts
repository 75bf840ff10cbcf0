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
