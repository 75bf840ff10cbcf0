/** What is being drawn in texts at this moment: code, formulas and diagrams. */
const underWay = new Set<Promise<unknown>>()

export function track(work: Promise<unknown>): void {
  underWay.add(work)
  void work.catch(() => undefined).then(() => underWay.delete(work))
}

/** Waits until nothing is being drawn, or at most so long. */
export async function whenDrawn(mostMs: number): Promise<void> {
  const late = new Promise<boolean>((resolve) => setTimeout(() => resolve(true), mostMs))
  let isLate = false
  while (underWay.size && !isLate) isLate = await Promise.race([late, Promise.allSettled([...underWay]).then(() => false)])
}
