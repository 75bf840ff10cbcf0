/** Where the steps of a graph stand: behind what they need, from left to right or from top to bottom. */
import { Graph, layout } from '@dagrejs/dagre'

export const NODE_HEIGHT = 58

export type Direction = 'LR' | 'TB'

export interface Placement {
  direction: Direction
  nodeWidth: number
  width: number
  height: number
  /** The upper left corner of each step. */
  corners: Map<string, { x: number; y: number }>
}

type Steps = readonly { id: string; depends_on: string[] }[]

const NORMAL = 196
const MIDDLE = 166
const COMPACT = 136
/** A pane that is less wide has its steps from top to bottom. */
const NARROW = 560

/** The first placement that is seen whole in a pane of this size, without being made smaller; else one to move about in. */
export function placeSteps(steps: Steps, pane: { width: number; height: number }): Placement {
  const isNarrow = pane.width > 0 && pane.width < NARROW
  const wanted: [Direction, number][] = [
    ...(isNarrow
      ? []
      : ([
          ['LR', NORMAL],
          ['LR', MIDDLE],
          ['LR', COMPACT],
        ] as const)),
    ['TB', NORMAL],
    ['TB', MIDDLE],
    ['TB', COMPACT],
  ].map(([direction, nodeWidth]) => [direction as Direction, nodeWidth as number])
  const placements: Placement[] = []
  for (const [direction, nodeWidth] of wanted) {
    const placed = place(steps, direction, nodeWidth)
    if (placed.width <= pane.width && placed.height <= pane.height) return placed
    placements.push(placed)
  }
  const byWidth = placements.toSorted((first, second) => first.width - second.width)
  return (isNarrow ? byWidth[0] : placements[0]) ?? place(steps, 'LR', NORMAL)
}

/** Dependencies on steps that do not exist are left out. */
function place(steps: Steps, direction: Direction, nodeWidth: number): Placement {
  const graph = new Graph()
  const isCompact = nodeWidth < NORMAL
  graph.setGraph({
    rankdir: direction,
    nodesep: isCompact ? 14 : 22,
    edgesep: isCompact ? 20 : 40,
    ranksep: direction === 'TB' || isCompact ? 36 : 56,
    marginx: 8,
    marginy: 12,
  })
  graph.setDefaultEdgeLabel(() => ({}))
  const known = new Set(steps.map((step) => step.id))
  for (const step of steps) graph.setNode(step.id, { width: nodeWidth, height: NODE_HEIGHT })
  for (const step of steps) {
    for (const source of step.depends_on) if (known.has(source)) graph.setEdge(source, step.id)
  }
  layout(graph)
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number }
  const corners = new Map(
    steps.map((step) => {
      const { x, y } = graph.node(step.id) as { x: number; y: number }
      return [step.id, { x: x - nodeWidth / 2, y: y - NODE_HEIGHT / 2 }]
    }),
  )
  return { direction, nodeWidth, width, height, corners }
}
