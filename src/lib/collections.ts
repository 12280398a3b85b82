interface Entry<T> {
  value: T | undefined;
  at: number;
}

/**
 * A list for values that are added and removed with every request, in no particular order.
 *
 * It is not a Set, because of garbage collection. When a Set grows, V8 links its old hash table to the new one. As soon as
 * one of these tables is in the old generation, minor collections keep the whole chain alive, with every request that was
 * ever in it, until the next full collection.
 */
export class UnorderedList<T> {
  readonly #entries: Entry<T>[] = [];

  /** Returns a function that removes the value. */
  add(value: T): () => void {
    const entry: Entry<T> = { value, at: this.#entries.length };
    this.#entries.push(entry);
    return () => {
      // A caller that keeps this function does not keep the value alive.
      entry.value = undefined;
      if (this.#entries[entry.at] !== entry) return;
      // The last entry moves to its index.
      const last = this.#entries.pop() as Entry<T>;
      if (last === entry) return;
      last.at = entry.at;
      this.#entries[last.at] = last;
    };
  }

  /** A copy, so that the list may change during a loop over it. */
  values(): T[] {
    return this.#entries.map(({ value }) => value as T);
  }
}

interface Link<T> {
  key: string;
  value: T | undefined;
  next: Link<T> | undefined;
}

const BUCKETS = 1024;
/** Keys are digests or random, so a few of their characters spread them over the buckets. */
const KEY_CHARS = 4;

/**
 * A hash table for values that are added and removed with every request. It is not a Map, for the reason that
 * {@link UnorderedList} gives. The keys must be digests or random.
 */
export class HashTable<T> {
  readonly #buckets: (Link<T> | undefined)[] = new Array(BUCKETS).fill(undefined);

  get(key: string): T | undefined {
    let at = this.#buckets[bucketOf(key)];
    while (at && at.key !== key) at = at.next;
    return at?.value;
  }

  /** The key must not be there. */
  add(key: string, value: T): void {
    const bucket = bucketOf(key);
    this.#buckets[bucket] = { key, value, next: this.#buckets[bucket] };
  }

  delete(key: string): void {
    const bucket = bucketOf(key);
    let before: Link<T> | undefined;
    for (let at = this.#buckets[bucket]; at; before = at, at = at.next) {
      if (at.key !== key) continue;
      if (before) before.next = at.next;
      else this.#buckets[bucket] = at.next;
      at.value = undefined;
      at.next = undefined;
      return;
    }
  }

  values(): T[] {
    const values: T[] = [];
    for (const first of this.#buckets) for (let at = first; at; at = at.next) values.push(at.value as T);
    return values;
  }
}

function bucketOf(key: string): number {
  let hash = 0;
  for (let i = 0; i < KEY_CHARS && i < key.length; i++) hash = (hash * 31 + key.charCodeAt(i)) % BUCKETS;
  return hash;
}

/** Counts what is in flight. It holds no reference to what it counts. */
export class InFlightCounter {
  count = 0;
  #whenIdle: (() => void)[] = [];

  begin(): void {
    this.count++;
  }

  end(): void {
    this.count--;
    if (this.count === 0) for (const idle of this.#whenIdle.splice(0)) idle();
  }

  /** Resolves when nothing is in flight. */
  idle(): Promise<void> {
    if (this.count === 0) return Promise.resolve();
    return new Promise((resolve) => this.#whenIdle.push(resolve));
  }
}
