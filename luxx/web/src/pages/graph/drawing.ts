/** Draws a graph: places its nodes by forces, and shows it with sigma. Loaded where a picture is shown. */
import { DirectedGraph } from 'graphology'
import forceAtlas2 from 'graphology-layout-forceatlas2'
import Sigma from 'sigma'
import type { Graph, GraphNode } from './graph'

interface DrawnNode {
  x: number
  y: number
  size: number
  color: string
  label: string
  kind: GraphNode['kind']
}
interface DrawnEdge {
  size: number
  weight: number
}

/** The time that the forces have, and how much of it at once, so that the page stays usable. */
const LAYOUT_MS = 1200
const SLICE_MS = 24
const LARGE = 300
/** So few nodes all show their names. */
const SMALL = 50
const COLOURS = 12
const LABEL_SIZE = 12

export interface Drawing {
  zoom: (direction: 'in' | 'out' | 'all') => void
  end: () => void
}

/** `center`: the id of the node that is emphasised; `choose` is called with the id of an entity that was clicked. */
export function draw(container: HTMLElement, shown: Graph, center: string, choose: (id: string) => void): Drawing {
  const graph = graphOf(shown, center)
  const sigma = new Sigma<DrawnNode, DrawnEdge>(graph, container, {
    hideEdgesOnMove: graph.size > LARGE * 10,
    labelRenderedSizeThreshold: graph.order > LARGE ? 9 : 4,
    labelDensity: graph.order > SMALL ? 1 : 10,
    labelFont: getComputedStyle(document.body).fontFamily,
    labelSize: LABEL_SIZE,
    labelWeight: '400',
    labelColor: { color: colour('--ink') },
    defaultEdgeColor: colour('--line-strong'),
    defaultDrawNodeHover: drawHovered,
    stagePadding: 56,
  })
  sigma.on('clickNode', ({ node }) => {
    if (graph.getNodeAttribute(node, 'kind') === 'entity') choose(node)
  })
  const stop = place(graph)
  const camera = sigma.getCamera()
  return {
    zoom: (direction) => void (direction === 'in' ? camera.animatedZoom() : direction === 'out' ? camera.animatedUnzoom() : camera.animatedReset()),
    end: () => {
      stop()
      sigma.kill()
    },
  }
}

function graphOf(shown: Graph, center: string): DirectedGraph<DrawnNode, DrawnEdge> {
  const graph = new DirectedGraph<DrawnNode, DrawnEdge>()
  const degrees = shown.nodes.map(() => 0)
  for (const [start = -1, end = -1] of shown.edges) {
    degrees[start] = (degrees[start] ?? 0) + 1
    degrees[end] = (degrees[end] ?? 0) + 1
  }
  shown.nodes.forEach((node, index) => {
    // On a spiral, so that equal graphs look equal.
    const angle = index * 2.4
    const size = 4 + Math.min(8, Math.sqrt(degrees[index] ?? 0) * 1.6) + (node.id === center ? 4 : 0)
    graph.addNode(node.id, {
      x: Math.sqrt(index + 1) * Math.cos(angle),
      y: Math.sqrt(index + 1) * Math.sin(angle),
      size,
      color: colourOf(node),
      label: node.name,
      kind: node.kind,
    })
  })
  for (const [start = -1, end = -1, count = 1] of shown.edges) {
    const [from, to] = [shown.nodes[start]?.id, shown.nodes[end]?.id]
    if (from && to && from !== to) graph.mergeEdge(from, to, { size: Math.min(4, 0.6 + count * 0.4), weight: count })
  }
  return graph
}

/** Moves the nodes in slices until the time is over; the returned function ends it. */
function place(graph: DirectedGraph<DrawnNode, DrawnEdge>): () => void {
  // Parts that nothing connects stay near each other.
  const gravity = graph.order > LARGE ? 0.1 : 0.4
  const settings = { ...forceAtlas2.inferSettings(graph), gravity, barnesHutOptimize: graph.order > LARGE }
  const until = performance.now() + LAYOUT_MS
  let frame = 0
  const step = (): void => {
    const sliceEnd = performance.now() + SLICE_MS
    do forceAtlas2.assign(graph, { iterations: 1, settings })
    while (performance.now() < sliceEnd)
    if (performance.now() < until) frame = requestAnimationFrame(step)
  }
  if (graph.order > 1) step()
  return () => {
    cancelAnimationFrame(frame)
  }
}

/** The name of the node under the pointer, in a box above the other names. */
function drawHovered(context: CanvasRenderingContext2D, node: { x: number; y: number; size: number; label: string | null }): void {
  const label = node.label ?? ''
  context.font = `500 ${LABEL_SIZE}px ${getComputedStyle(document.body).fontFamily}`
  const [left, height] = [node.x + node.size + 2, LABEL_SIZE + 10]
  context.fillStyle = colour('--raised')
  context.strokeStyle = colour('--line-strong')
  context.beginPath()
  context.roundRect(left, node.y - height / 2, context.measureText(label).width + 12, height, 4)
  context.fill()
  context.stroke()
  context.fillStyle = colour('--ink')
  context.fillText(label, left + 6, node.y + LABEL_SIZE / 3)
}

/** Each type of entities has a colour; communities and episodes are grey. */
function colourOf(node: Pick<GraphNode, 'kind' | 'type'>): string {
  if (node.kind !== 'entity') return colour(node.kind === 'community' ? '--ink-soft' : '--muted')
  const hash = [...node.type.toLowerCase()].reduce((sum, letter) => (sum * 31 + (letter.codePointAt(0) ?? 0)) % 9973, 7)
  return colour(`--seat-${(hash % COLOURS) + 1}`)
}

const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true })
const known = new Map<string, string>()

/** A colour of the theme as sigma knows colours. */
function colour(name: string): string {
  const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim()
  const found = known.get(value)
  if (found !== undefined || !canvas) return found ?? '#888888'
  canvas.fillStyle = value
  canvas.fillRect(0, 0, 1, 1)
  const [red = 0, green = 0, blue = 0] = canvas.getImageData(0, 0, 1, 1).data
  const made = `#${[red, green, blue].map((part) => part.toString(16).padStart(2, '0')).join('')}`
  known.set(value, made)
  return made
}
