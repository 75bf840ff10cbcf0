import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import tailwindcss from '@tailwindcss/vite'
import vue from '@vitejs/plugin-vue'
import { defineConfig, type Plugin } from 'vite'

const SERVER = process.env.LUXX_URL ?? 'http://127.0.0.1:8000'
const NAMED = 'assets/[name]-[hash:7].js'
const TEXT = /\.(js|css|html|svg|json|webmanifest)$/

/** Writes compressed forms of all texts beside them; the server sends these as they are. */
function compressed(): Plugin {
  let folder = ''
  return {
    name: 'compressed',
    apply: 'build',
    configResolved(config) {
      folder = join(config.root, config.build.outDir)
    },
    closeBundle() {
      for (const name of readdirSync(folder, { recursive: true, encoding: 'utf-8' })) {
        if (!TEXT.test(name)) continue
        const body = readFileSync(join(folder, name))
        writeFileSync(join(folder, `${name}.gz`), gzipSync(body, { level: 9 }))
        const params = { [constants.BROTLI_PARAM_QUALITY]: 9 }
        writeFileSync(join(folder, `${name}.br`), brotliCompressSync(body, { params }))
      }
    },
  }
}

export default defineConfig({
  base: '/ui/',
  plugins: [vue(), tailwindcss(), compressed()],
  resolve: {
    alias: {
      '@': fileURLToPath(new URL('./src', import.meta.url)),
      // markdown-it imports one function of this package.
      entities: fileURLToPath(new URL('./src/markdown/entities.ts', import.meta.url)),
    },
  },
  build: {
    target: 'es2023',
    assetsInlineLimit: 0,
    // For the test of the sizes; it is not served.
    manifest: 'manifest.json',
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 4000,
    rollupOptions: {
      input: ['index.html', 'diagram.html'],
      // Each script names those that it loads. A digest that is shorter by a character saves some of the budget.
      output: { entryFileNames: NAMED, chunkFileNames: NAMED, assetFileNames: 'assets/[name]-[hash:7][extname]' },
    },
  },
  server: {
    // `npm run dev` shows the sources at /ui/ and passes all else on to a running server.
    proxy: { '^/(?!ui/)': { target: SERVER, ws: true, headers: { origin: SERVER } } },
  },
})
