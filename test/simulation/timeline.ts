interface Event {
  atMs: number;
  /** Events of one moment keep their order. */
  number: number;
  /** Missing after it was cancelled. */
  act: (() => void) | undefined;
}

/** No history of a small world has as many. One that has them does not end. */
const MOST_EVENTS = 50_000;

/** Simulated time. Everything that waits is here, so that a seed always gives the same history. */
export class Timeline {
  /** True time, which no clock in the world shows. Milliseconds. */
  nowMs = 0;
  #events = 0;
  /** A binary heap: the next event is first. */
  readonly #heap: Event[] = [];
  #numbers = 0;

  /** Calls `act` after `ms`. Returns a function that cancels it. */
  after(ms: number, act: () => void): () => void {
    const event: Event = { atMs: this.nowMs + ms, number: this.#numbers++, act };
    this.#push(event);
    return () => {
      event.act = undefined;
    };
  }

  /**
   * Runs until nothing waits any more. The next event comes when no promise has anything left to do: Node runs a tick that a
   * microtask has asked for when all microtasks have run.
   */
  run(): Promise<void> {
    return new Promise((resolve, reject) => {
      const next = () => {
        const event = this.#pop();
        if (!event) {
          resolve();
          return;
        }
        this.nowMs = event.atMs;
        try {
          if (++this.#events > MOST_EVENTS) throw new Error('the history does not end');
          event.act?.();
        } catch (error) {
          reject(error);
          return;
        }
        queueMicrotask(settle);
      };
      const settle = () => process.nextTick(next);
      queueMicrotask(settle);
    });
  }

  #push(event: Event): void {
    const heap = this.#heap;
    let at = heap.length;
    heap.push(event);
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (!isBefore(event, heap[above] as Event)) break;
      heap[at] = heap[above] as Event;
      at = above;
    }
    heap[at] = event;
  }

  #pop(): Event | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (heap.length === 0 || !last) return first;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below >= heap.length) break;
      if (below + 1 < heap.length && isBefore(heap[below + 1] as Event, heap[below] as Event)) below++;
      if (!isBefore(heap[below] as Event, last)) break;
      heap[at] = heap[below] as Event;
      at = below;
    }
    heap[at] = last;
    return first;
  }
}

const isBefore = (a: Event, b: Event): boolean =>
  a.atMs < b.atMs || (a.atMs === b.atMs && a.number < b.number);
