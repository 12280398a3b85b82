import type { Store } from '../ledger/ledger.ts';
import { type Clock, momentOf, sinceMs } from '../lib/clock.ts';
import { UnorderedList } from '../lib/collections.ts';
import type { Owner } from '../store/types.ts';
import type { Emit, Told } from '../telemetry/emit.ts';

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
  call: Told<'lease_lost'>;
  owner: Owner;
  dueMs: number;
}

export interface RenewalParts {
  store: Store;
  leaseMs: number;
  emit: Emit;
  clock: Clock;
}

/** Renews the leases of executions that last longer than a third of their lease, with one timer for all of them. */
export class Renewals {
  readonly #parts: RenewalParts;
  readonly #executions = new UnorderedList<Renewal>();
  #cancel: (() => void) | undefined;

  constructor(parts: RenewalParts) {
    this.#parts = parts;
  }

  /** Keeps the owner's lease until the returned function is called. */
  keep(call: Renewal['call'], owner: Owner): () => void {
    const { leaseMs, clock } = this.#parts;
    const remove = this.#executions.add({ call, owner, dueMs: clock.monotonicMs() + leaseMs / 3 });
    if (!this.#cancel) this.#lookLater();
    return remove;
  }

  close(): void {
    this.#cancel?.();
    this.#cancel = undefined;
  }

  #lookLater(): void {
    const { leaseMs, clock } = this.#parts;
    this.#cancel = clock.after(Math.ceil(leaseMs / 6), () => this.#look(), true);
  }

  /** Looks every sixth of the lease, as long as there are executions. */
  #look(): void {
    this.#cancel = undefined;
    const executions = this.#executions.values();
    if (executions.length === 0) return;
    this.#lookLater();
    const nowMs = this.#parts.clock.monotonicMs();
    for (const execution of executions) if (execution.dueMs <= nowMs) void this.#renew(execution);
  }

  /** The next renewal is due a third of the lease later, even if this one got no answer. */
  async #renew(execution: Renewal): Promise<void> {
    const { call, owner } = execution;
    const { store, leaseMs, emit, clock } = this.#parts;
    execution.dueMs = Number.POSITIVE_INFINITY;
    const renewed = await store.renew(owner).catch(() => undefined);
    execution.dueMs = clock.monotonicMs() + leaseMs / 3;
    if (renewed === 'stale') emit('stale', { ...call, write: 'renew' });
    if (renewed === 'lost') emit('lease_lost', call);
  }
}
