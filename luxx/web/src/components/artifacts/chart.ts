/** The JSON of a chart as the renderers of files read it: `{type, title?, labels, series: [{name, values}]}`, or that of Chart.js. */

export const CHART_TYPES = ['column', 'bar', 'line', 'area', 'pie', 'doughnut', 'scatter'] as const
export type ChartType = (typeof CHART_TYPES)[number]

export interface ChartSpec {
  type: ChartType
  title: string
  labels: string[]
  series: { name: string; values: (number | null)[] }[]
  xLabel: string
  yLabel: string
  isStacked: boolean
}

const MAX_SERIES = 12
const MAX_LABELS = 200

/** Null where the text is no chart. */
export function readChart(text: string): ChartSpec | null {
  try {
    return chartOf(JSON.parse(text) as Record<string, unknown>)
  } catch {
    return null
  }
}

function chartOf(given: Record<string, unknown>): ChartSpec | null {
  const isOfChartJs = typeof given.data === 'object' && given.data !== null
  const data = isOfChartJs ? (given.data as Record<string, unknown>) : given
  const sets = (data.series ?? data.datasets) as Record<string, unknown>[]
  if (!Array.isArray(sets) || sets.length === 0) return null
  const series = sets.slice(0, MAX_SERIES).map((each) => ({
    name: String(each.name ?? each.label ?? ''),
    values: ((each.values ?? each.data) as unknown[]).slice(0, MAX_LABELS).map((value) => (typeof value === 'number' ? value : null)),
  }))
  const count = Math.max(...series.map(({ values }) => values.length))
  const labels = (data.labels ?? data.categories ?? Array.from({ length: count }, (_, index) => index + 1)) as unknown[]
  const isLying = (given.options as { indexAxis?: string } | undefined)?.indexAxis === 'y'
  const named = String(given.type ?? 'column').toLowerCase()
  const type = named === 'bar' && isOfChartJs && !isLying ? 'column' : named
  if (!CHART_TYPES.includes(type as ChartType)) return null
  return {
    type: type as ChartType,
    title: String(given.title ?? ''),
    labels: labels.slice(0, MAX_LABELS).map(String),
    series,
    xLabel: String(given.x_label ?? ''),
    yLabel: String(given.y_label ?? ''),
    isStacked: given.stacked === true,
  }
}
