/**
 * Results of costly functions of texts. When an answer has been written, the page shows the stored one in place of the
 * one that it followed: the same blocks, formulas and code, which need not be made once more.
 */
export class Remembered<Result> {
  private readonly results = new Map<string, Result>()
  private characters = 0

  /** The newest results are kept, as long as the texts have no more characters than that. */
  constructor(private readonly mostCharacters: number) {}

  get(text: string, make: () => Result): Result {
    const known = this.results.get(text)
    if (known !== undefined) return known
    const result = make()
    this.results.set(text, result)
    this.characters += text.length
    for (const oldest of this.results.keys()) {
      if (this.characters <= this.mostCharacters) break
      this.results.delete(oldest)
      this.characters -= oldest.length
    }
    return result
  }
}
