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

/** What screen readers are told. */
export const announcement = new Shared('');
const announced: string[] = [];
/** Texts that come at the same moment are told together: each would replace the one before it. */
export function announce(text: string): void {
  // The same text again would be no change.
  announcement.set('');
  announced.push(text);
  if (announced.length === 1) setTimeout(() => announcement.set(announced.splice(0).join(' ')), 50);
}
