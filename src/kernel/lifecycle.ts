/**
 * Where a process is in its life: serving; draining (still serves, but says that it is about to end); closing (what
 * runs may end, nothing new begins).
 */
export class Lifecycle {
  #state: 'serving' | 'draining' | 'closing' = 'serving';

  get draining(): boolean {
    return this.#state !== 'serving';
  }

  get closing(): boolean {
    return this.#state === 'closing';
  }

  drain(): void {
    if (this.#state === 'serving') this.#state = 'draining';
  }

  close(): void {
    this.#state = 'closing';
  }
}
