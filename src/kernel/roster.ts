/** A node of a doubly linked ring. */
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

  /** Also drops all references, so that a removed entry keeps neither its value nor its neighbours alive. */
  remove(): void {
    this.before.after = this.after;
    this.after.before = this.before;
    this.value = undefined;
    this.before = this;
    this.after = this;
  }
}

/**
 * A collection in insertion order, for values that are added and removed with every request.
 *
 * It is not a Set, because of garbage collection. When a Set grows, V8 links its old hash table to the new one. As soon as
 * one of these tables is in the old generation, minor collections keep the whole chain alive, with every request that was
 * ever in it, until the next full collection.
 */
export class Roster<T> {
  readonly #end = new Entry<T>();

  /** Returns a function that removes the value. */
  add(value: T): () => void {
    const entry = new Entry(value);
    entry.insertBefore(this.#end);
    return () => entry.remove();
  }

  /** A copy, so that the roster may change during a loop over it. */
  values(): T[] {
    const values: T[] = [];
    for (let at = this.#end.after; at !== this.#end; at = at.after) values.push(at.value as T);
    return values;
  }
}

/** Counts what runs, and resolves promises when nothing runs. It holds no reference to what it counts. */
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
