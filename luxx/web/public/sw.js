// Shows a page that says so when the server cannot be reached. Nothing else is answered from here: what the UI shows is
// always the server's.
const CACHE = 'luxx-offline-1'
const PAGE = '/ui/offline.html'
const FILES = [PAGE, '/ui/offline.css', '/ui/offline.js', '/ui/theme.js', '/ui/icon.svg']

self.addEventListener('install', (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)))
  self.skipWaiting()
})

self.addEventListener('activate', (event) => {
  event.waitUntil(caches.keys().then((names) => Promise.all(names.filter((name) => name !== CACHE).map((name) => caches.delete(name)))))
})

self.addEventListener('fetch', (event) => {
  const { request } = event
  const path = new URL(request.url).pathname
  if (request.mode === 'navigate') event.respondWith(fetch(request).catch(() => caches.match(PAGE)))
  else if (FILES.includes(path)) event.respondWith(fetch(request).catch(() => caches.match(path)))
})
