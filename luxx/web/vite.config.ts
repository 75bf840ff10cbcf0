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

/** Small modules that the chat shares with the page of some area, which would load the chat for them. */
const OF_SEVERAL =
  /\/src\/(samples\/useSamples|stores\/prompts|i18n\/en\/prompts|components\/(skillStates|toolWords))\.ts$|\/icons\/(pin|check|info|import|refresh-cw|arrow-up|archive|graduation-cap|printer)\.js$/

const PAGE = /\/src\/pages\/([\w-]+)\/([A-Za-z]+)Page\.vue$/

/** The area whose page is this module: `rooms` of `pages/rooms/RoomsPage.vue`. */
function areaOf(id: string): string | null {
  const [, folder = '', name = ''] = PAGE.exec(id) ?? []
  return folder && folder.replaceAll('-', '') === name.toLowerCase() ? folder : null
}

/** Writes which scripts the page of each area loads besides those of `index.html`; the server names them with its answer. */
function preloaded(): Plugin {
  return {
    name: 'preloaded',
    apply: 'build',
    generateBundle(_options, bundle) {
      const chunks = Object.values(bundle).filter((file) => file.type === 'chunk')
      const withImports = (names: readonly string[], found = new Set<string>()): Set<string> => {
        for (const name of names) {
          const file = bundle[name]
          if (found.has(name) || file?.type !== 'chunk') continue
          found.add(name)
          withImports(file.imports, found)
        }
        return found
      }
      const entry = withImports(chunks.filter((chunk) => chunk.facadeModuleId?.endsWith('/index.html')).map((chunk) => chunk.fileName))
      const areas: Record<string, string[]> = {}
      for (const chunk of chunks) {
        for (const id of chunk.moduleIds) {
          const area = areaOf(id)
          if (area) areas[area] = [...withImports([chunk.fileName])].filter((name) => !entry.has(name)).sort()
        }
      }
      this.emitFile({ type: 'asset', fileName: 'preloaded.json', source: JSON.stringify(areas) })
    },
  }
}

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
  plugins: [vue(), tailwindcss(), preloaded(), compressed()],
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
      output: {
        entryFileNames: NAMED,
        chunkFileNames: NAMED,
        assetFileNames: 'assets/[name]-[hash:7][extname]',
        codeSplitting: {
          groups: [
            { name: 'shared', test: /dompurify|vite\/preload-helper/, priority: 4 },
            { name: 'app', test: (id: string) => /\/src\/(App\.vue|router\.ts)$/.test(id) || OF_SEVERAL.test(id), priority: 3 },
            { name: 'common', test: /\/(src|lucide-vue-next|@lucide)\//, minShareCount: 6, maxModuleSize: 8_000, priority: 2 },
            { name: 'chat', test: /\/pages\/chat\/(ChatPage|ConversationView|StartPanel)\.vue$/, priority: 1 },
          ],
        },
      },
    },
  },
  server: {
    // `npm run dev` shows the sources at /ui/ and passes all else on to a running server.
    proxy: { '^/(?!ui/)': { target: SERVER, ws: true, headers: { origin: SERVER } } },
  },
})
