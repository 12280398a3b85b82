/** A place in a ring. */
class Entry<T> {
  value: T | undefined;
  before: Entry<T> = this;
  after: Entry<T> = this;

  constructor(value?: T) {
    this.value = value;
  }

  insertBefore(entry: Entry<T>): void {
    this.before = entry.before;
    this.after = entry;
    this.before.after = this;
    entry.before = this;
  }

  /** It holds nothing any more, nor does it lead anywhere. */
  remove(): void {
    this.before.after = this.after;
    this.after.before = this.before;
    this.value = undefined;
    this.before = this;
    this.after = this;
  }
}

/**
 * What comes and goes with every request, in order.
 *
 * No Set: V8 links each table that a Set has outgrown to the next one. As soon as one of them is old, the collector of
 * young objects takes the whole chain for alive, with all requests that were ever in it, until the next full collection.
 */
export class Roster<T> {
  readonly #end = new Entry<T>();

  /** Returns what takes the value off again. */
  add(value: T): () => void {
    const entry = new Entry(value);
    entry.insertBefore(this.#end);
    return () => entry.remove();
  }

  /** Those who are on it now. */
  values(): T[] {
    const values: T[] = [];
    for (let at = this.#end.after; at !== this.#end; at = at.after) values.push(at.value as T);
    return values;
  }
}

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
