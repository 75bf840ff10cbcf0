/** Where the steps of a graph stand: from left to right, behind what they need. */
import { Graph, layout } from '@dagrejs/dagre'

export const NODE_WIDTH = 196
export const NODE_HEIGHT = 58

export interface Placed {
  id: string
  x: number
  y: number
}

/** The upper left corner of each step. Dependencies on steps that do not exist are left out. */
export function placeSteps(steps: readonly { id: string; depends_on: string[] }[]): Placed[] {
  const graph = new Graph()
  graph.setGraph({ rankdir: 'LR', nodesep: 22, edgesep: 40, ranksep: 56, marginx: 16, marginy: 16 })
  graph.setDefaultEdgeLabel(() => ({}))
  const known = new Set(steps.map((step) => step.id))
  for (const step of steps) graph.setNode(step.id, { width: NODE_WIDTH, height: NODE_HEIGHT })
  for (const step of steps) {
    for (const source of step.depends_on) if (known.has(source)) graph.setEdge(source, step.id)
  }
  layout(graph)
  return steps.map((step) => {
    const { x, y } = graph.node(step.id) as { x: number; y: number }
    return { id: step.id, x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2 }
  })
}
