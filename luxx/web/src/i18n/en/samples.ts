import { defineText, type Texts } from '../text'

const en = {
  demo: 'Demo',
  demoHint: 'The answers here are scripted. Connect a model and choose it to get real ones.',
  openRoom: 'Open the sample room',
  openTask: 'Open the sample task',
}

export type SamplesText = Texts<typeof en>
export const useSamplesText = defineText(en, () => import('../zh/samples'))
