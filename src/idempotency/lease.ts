import type { Store } from '../ledger/ledger.ts';
import { type Clock, momentOf, sinceMs } from '../lib/clock.ts';
import { Roster } from '../lib/roster.ts';
import type { Owner } from '../store/contract.ts';
import type { EngineObserver, Named } from './call.ts';

/**
 * The last-moment fence: returns a function that says whether the owner may still send. It must be made right before `start`
 * is sent to the store.
 *
 * For `leaseMs` after its start, no other gateway takes the owner for dead. The owner counts from before `start`, so that its
 * time ends before the lease in the store does. Renewals do not prolong that time: after a pause, another request may own the
 * key, and a renewal that was sent before the pause may still succeed. Both clocks count, because the monotonic one stops
 * while a machine is suspended.
 */
export function fenceFrom(clock: Clock, leaseMs: number): () => boolean {
  const start = momentOf(clock);
  return () => sinceMs(clock, start) < leaseMs;
}

interface Renewal {
  call: Named;
  owner: Owner;
  dueMs: number;
}

/** Renews the leases of executions that last longer than a third of their lease, with one timer for all of them. */
export class Renewals {
  readonly #store: Store;
  readonly #leaseMs: number;
  readonly #observer: Pick<EngineObserver, 'stale' | 'leaseLost'>;
  readonly #clock: Clock;
  readonly #executions = new Roster<Renewal>();
  #timer: NodeJS.Timeout | undefined;

  constructor(
    store: Store,
    leaseMs: number,
    observer: Pick<EngineObserver, 'stale' | 'leaseLost'>,
    clock: Clock,
  ) {
    this.#store = store;
    this.#leaseMs = leaseMs;
    this.#observer = observer;
    this.#clock = clock;
  }

  /** Keeps the owner's lease until the returned function is called. */
  keep(call: Named, owner: Owner): () => void {
    this.#timer ??= setInterval(() => this.#renewDue(), Math.max(1, Math.floor(this.#leaseMs / 6))).unref();
    return this.#executions.add({ call, owner, dueMs: this.#clock.monotonicMs() + this.#leaseMs / 3 });
  }

  close(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #renewDue(): void {
    const nowMs = this.#clock.monotonicMs();
    for (const execution of this.#executions.values())
      if (execution.dueMs <= nowMs) void this.#renew(execution);
  }

  /** The next renewal is due a third of the lease later, even if this one got no answer. */
  async #renew(execution: Renewal): Promise<void> {
    const { call, owner } = execution;
    execution.dueMs = Number.POSITIVE_INFINITY;
    const renewed = await this.#store.renew(owner).catch(() => undefined);
    execution.dueMs = this.#clock.monotonicMs() + this.#leaseMs / 3;
    if (renewed === 'stale') this.#observer.stale('renew', call);
    if (renewed === 'lost') this.#observer.leaseLost(call);
  }
}
