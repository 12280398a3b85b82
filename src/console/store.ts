import { useEffect, useState } from 'preact/hooks';

/** A value that several parts of the page share. */
export class Shared<T> {
  #value: T;
  readonly #listeners = new Set<(value: T) => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of this.#listeners) listener(value);
  }

  /** Returns a function that ends it. */
  listen(listener: (value: T) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

export function useShared<T>(shared: Shared<T>): T {
  const [value, setValue] = useState(shared.value);
  useEffect(() => {
    setValue(shared.value);
    return shared.listen(setValue);
  }, [shared]);
  return value;
}

/** The texts for screen readers. Each is an entry of its own, because a text must not replace another that came just before. */
export const announcements = new Shared<readonly { id: number; text: string }[]>([]);
const ANNOUNCED_FOR_MS = 10_000;
let announced = 0;
export function announce(text: string): void {
  const id = ++announced;
  announcements.set([...announcements.value, { id, text }]);
  const remove = () => announcements.set(announcements.value.filter((other) => other.id !== id));
  setTimeout(remove, ANNOUNCED_FOR_MS);
}
