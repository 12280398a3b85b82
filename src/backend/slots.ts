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

/** A little less than the console's time between two samples, whose timer may be early. */
const PERIOD_MS = 4900;

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
  /** Its number. A period ends when somebody asks for {@link heldLong} and it has lasted long enough. */
  #period = 0;
  #periodSinceMs: number;
  /** The slots in use that were taken before this period, and those of them that were taken before the last one. */
  #held = 0;
  #heldLong = 0;

  constructor({ maxConnections, maxQueued, queueTimeoutMs }: SlotOptions, clock: Clock) {
    this.#clock = clock;
    this.#periodSinceMs = clock.monotonicMs();
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

  /**
   * How many slots are in use since before the last two readings that were about five seconds apart. So no request has to note when it
   * took its slot, and anybody may read at any time.
   */
  heldLong(): number {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#periodSinceMs >= PERIOD_MS) {
      this.#period++;
      this.#periodSinceMs = nowMs;
      this.#heldLong = this.#held;
      this.#held = this.#inUse;
    }
    return this.#heldLong;
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
    const takenIn = this.#period;
    let released = false;
    return {
      release: () => {
        if (released) return;
        released = true;
        this.#inUse--;
        if (takenIn < this.#period) this.#held--;
        if (takenIn < this.#period - 1) this.#heldLong--;
        const next = this.#queue.shift();
        if (next) next(this.#newSlot());
        else this.#free++;
      },
    };
  }
}
