/** Counts what runs, and tells when nothing does. Holds on to nothing that it counts. */
export class Tally {
  #count = 0;
  #whenIdle: (() => void)[] = [];

  get count(): number {
    return this.#count;
  }

  begin(): void {
    this.#count++;
  }

  end(): void {
    this.#count--;
    if (this.#count === 0) for (const idle of this.#whenIdle.splice(0)) idle();
  }

  /** Resolves when nothing runs. */
  idle(): Promise<void> {
    if (this.#count === 0) return Promise.resolve();
    return new Promise((resolve) => this.#whenIdle.push(resolve));
  }
}
