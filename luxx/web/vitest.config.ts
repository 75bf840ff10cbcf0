import { defineConfig, mergeConfig } from 'vitest/config'
import viteConfig from './vite.config'

// Tests of large logs take seconds where other tests use the processors.
export default mergeConfig(
  viteConfig,
  defineConfig({ test: { include: ['src/**/*.test.ts'], pool: 'threads', testTimeout: 60_000, server: { deps: { inline: ['markdown-it'] } } } }),
)
