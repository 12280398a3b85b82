import type { Clock } from '../kernel/clock.ts';
import type { Owner, Store } from './store.ts';

export interface OwnLeaseOptions {
  store: Store;
  owner: Owner;
  leaseMs: number;
  clock: Clock;
  /** The owner's token stands no longer. */
  onStale(): void;
  /** The lease had lapsed while the owner lived. */
  onLost(): void;
}

/** A moment on both clocks. */
export interface Moment {
  monotonicMs: number;
  wallMs: number;
}

export const momentOf = (clock: Clock): Moment => ({
  monotonicMs: clock.monotonicMs(),
  wallMs: clock.wallMs(),
});

/**
 * An owner's lease while its request runs: keeps it, and knows whether the request may still be started.
 *
 * As long as the lease stands nobody takes the key over. It is counted from before the command that confirmed it, so
 * that it ends here before it ends in the store. Once it has lapsed it is never trusted again: somebody may have called
 * the key in doubt in the meantime, and such a key may be taken over whoever holds a lease.
 */
export class OwnLease {
  readonly #options: OwnLeaseOptions;
  readonly #timer: NodeJS.Timeout;
  #confirmed: Moment;
  #lapsed = false;
  #renewing = false;

  /** @param confirmed taken before the begin was issued */
  constructor(options: OwnLeaseOptions, confirmed: Moment) {
    this.#options = options;
    this.#confirmed = confirmed;
    // At a third of the lease, so that two renewals may fail before it lapses.
    const everyMs = Math.max(1, Math.floor(options.leaseMs / 3));
    this.#timer = setInterval(() => void this.#renew(), everyMs);
  }

  /** Both clocks must agree: the monotonic one stands still while a machine is suspended. */
  mayStart(): boolean {
    const { clock, leaseMs } = this.#options;
    const now = momentOf(clock);
    const ageMs = Math.max(
      now.monotonicMs - this.#confirmed.monotonicMs,
      now.wallMs - this.#confirmed.wallMs,
    );
    return !this.#lapsed && ageMs < leaseMs;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  async #renew(): Promise<void> {
    if (this.#renewing) return;
    this.#renewing = true;
    const { store, owner, clock, onStale, onLost } = this.#options;
    const issued = momentOf(clock);
    try {
      const renewed = await store.renew(owner);
      if (renewed === 'ok') this.#confirmed = issued;
      else this.#lapsed = true;
      if (renewed === 'stale') onStale();
      if (renewed === 'lost') onLost();
    } catch {
      // Liveness only: an unanswered renewal is tried again by the next tick.
    } finally {
      this.#renewing = false;
    }
  }
}
