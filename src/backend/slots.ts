import { type Clock, within } from '../lib/clock.ts';
import type { Slot } from '../lib/exchange.ts';
import type { UpstreamOptions } from './upstream-options.ts';

/** A position in the queue for a slot. */
export interface QueueTicket {
  /** Resolves when it is this ticket's turn. */
  readonly slot: Promise<Slot>;
  /** Leaves the queue, and returns the slot if there is one already. */
  leave(): void;
}

export type SlotOptions = Pick<UpstreamOptions, 'maxConnections' | 'maxQueued' | 'queueTimeoutMs'>;

/**
 * One slot for each connection to the backend, with a bounded first-in first-out queue in front of them.
 *
 * Requests queue here and not inside the HTTP client: the client's queue has no bound, and a request in it cannot be taken
 * back.
 */
export class Slots {
  /** How long a request may wait in the queue. Milliseconds. */
  readonly queueTimeoutMs: number;
  readonly #clock: Clock;
  readonly #maxQueued: number;
  readonly #queue: ((slot: Slot) => void)[] = [];
  #free: number;
  #inUse = 0;
  /** The number of calls of {@link heldSinceLastCall}. */
  #calls = 0;
  /** The slots in use that were taken before the last of them. */
  #held = 0;

  constructor({ maxConnections, maxQueued, queueTimeoutMs }: SlotOptions, clock: Clock) {
    this.#clock = clock;
    this.#free = maxConnections;
    this.#maxQueued = maxQueued;
    this.queueTimeoutMs = queueTimeoutMs;
  }

  get inUse(): number {
    return this.#inUse;
  }

  get queued(): number {
    return this.#queue.length;
  }

  /** Returns how many slots have been in use since before the last call. So no request has to note when it took its slot. */
  heldSinceLastCall(): number {
    const held = this.#held;
    this.#held = this.#inUse;
    this.#calls++;
    return held;
  }

  /** Takes a slot, if one is free and no others are waiting for it. */
  tryTake(): Slot | undefined {
    if (this.#free === 0) return undefined;
    this.#free--;
    return this.#newSlot();
  }

  /** Takes a ticket for the back of the queue, unless the queue is full. */
  queue(): QueueTicket | undefined {
    if (this.#queue.length >= this.#maxQueued) return undefined;
    const { promise, resolve } = Promise.withResolvers<Slot>();
    this.#queue.push(resolve);
    const leave = () => {
      const at = this.#queue.indexOf(resolve);
      if (at >= 0) this.#queue.splice(at, 1);
      else void promise.then((slot) => slot.release());
    };
    return { slot: promise, leave };
  }

  /**
   * Takes a slot, and waits in the queue if none is free. Gives up if the queue is full, after `queueTimeoutMs`, and when `gone` is
   * aborted because the merchant has disconnected.
   */
  async take(gone?: AbortSignal): Promise<Slot | undefined> {
    const free = this.tryTake();
    if (free) return free;
    const ticket = this.queue();
    const slot = ticket && (await within(this.#clock, ticket.slot, this.queueTimeoutMs, gone));
    if (!slot) ticket?.leave();
    return slot;
  }

  #newSlot(): Slot {
    this.#inUse++;
    const takenAt = this.#calls;
    let released = false;
    return {
      release: () => {
        if (released) return;
        released = true;
        this.#inUse--;
        if (takenAt !== this.#calls) this.#held--;
        const next = this.#queue.shift();
        if (next) next(this.#newSlot());
        else this.#free++;
      },
    };
  }
}
