import Redlock, { Lock } from 'redlock';
import type { Scope } from '../../lib/brands.ts';
import type { Clock } from '../../lib/clock.ts';
import { Table } from '../../lib/roster.ts';
import type { Owner } from '../contract.ts';
import type { RedisClient } from './client.ts';

/** The lease of one owner in this process. */
interface HeldLease {
  /** Undefined: the script took the lock, and redlock has not renewed it yet. */
  lock: Promise<Lock | undefined> | undefined;
  /** On the monotonic clock. Until then the lock nodes surely hold the lock. */
  untilMs: number;
  /** The lease had lapsed, and the record was not marked yet. */
  lapsed: boolean;
}

/**
 * The leases, as redlock locks. They only show that an owner is alive. If a lease is lost early or was never obtained, other
 * gateways take its owner for dead sooner; the record and its token still prevent a second execution.
 *
 * If the store's own Redis holds the leases, the scripts take and release the lock with redlock's keys and values, which
 * saves a command, and redlock only renews it. On lock nodes redlock does everything.
 *
 * Only redlock's acquire, extend and release are used, with one attempt each. Its `using()` spins when a lock is lost and
 * discards the result of the routine, and its retries can return a lock that has expired.
 */
export class Leases {
  /** The lease time that the scripts set, in milliseconds. 0: lock nodes hold the leases. */
  readonly scriptMs: number;
  readonly #redlock: Redlock;
  readonly #nodes: RedisClient[];
  readonly #leaseMs: number;
  readonly #clock: Clock;
  readonly #nameOf: (scope: Scope) => string;
  /** By token of the owner. */
  readonly #held = new Table<HeldLease>();

  /** @param lockNodes empty: the store's own Redis holds the leases */
  constructor(
    store: RedisClient,
    lockNodes: RedisClient[],
    { leaseMs, clock, nameOf }: { leaseMs: number; clock: Clock; nameOf(scope: Scope): string },
  ) {
    this.#nodes = lockNodes.length > 0 ? lockNodes : [store];
    this.scriptMs = lockNodes.length > 0 ? 0 : leaseMs;
    this.#leaseMs = leaseMs;
    this.#clock = clock;
    this.#nameOf = nameOf;
    this.#redlock = new Redlock(this.#nodes, { retryCount: 0 });
  }

  /** Call right after a start or restart. With lock nodes it acquires the lock in the background. */
  take(owner: Owner): void {
    const held: HeldLease = { lock: undefined, untilMs: Number.NEGATIVE_INFINITY, lapsed: false };
    this.#held.set(idOf(owner), held);
    if (this.scriptMs === 0) this.#acquire(owner, held);
  }

  /** Extends the lease, or takes it again if it had lapsed. False: it had lapsed, and {@link lapseMarked} is still due. */
  async renew(owner: Owner): Promise<boolean> {
    const held = this.#held.get(idOf(owner));
    if (!held) return true;
    const issuedMs = this.#clock.monotonicMs();
    const lock = await (held.lock ?? this.#takenByScript(owner));
    const extended = await (lock && this.#redlock.extend(lock, this.#leaseMs).catch(() => undefined));
    // The owner gave the lease back meanwhile, so a lock taken now would stay without an owner.
    if (!this.#held.get(idOf(owner))) return true;
    if (extended) {
      held.lock = Promise.resolve(extended);
      held.untilMs = issuedMs + this.#leaseMs;
    } else {
      held.lapsed = true;
      this.#acquire(owner, held);
    }
    return !held.lapsed;
  }

  /** Call after `mark-lapsed.lua` has marked the record. */
  lapseMarked(owner: Owner): void {
    const held = this.#held.get(idOf(owner));
    if (held) held.lapsed = false;
  }

  /** Whether the lock nodes hold the owner's lease. Undefined: the store's own Redis holds the leases. */
  onLockNodes(owner: Owner): boolean | undefined {
    if (this.scriptMs > 0) return undefined;
    return this.#clock.monotonicMs() < (this.#held.get(idOf(owner))?.untilMs ?? Number.NEGATIVE_INFINITY);
  }

  /** Call after the owner's last write. A lease that cannot be released lapses after its time. */
  giveBack(owner: Owner): void {
    const id = idOf(owner);
    void this.#held.get(id)?.lock?.then((lock) => lock?.release().catch(() => {}));
    this.#held.delete(id);
  }

  /** Does an owner hold the lease? A node that does not answer counts as yes, so that no living owner is taken for dead. */
  async isHeld(scope: Scope): Promise<boolean> {
    const name = this.#nameOf(scope);
    const answers = await Promise.all(this.#nodes.map((node) => node.exists(name).catch(() => 1)));
    return answers.filter((answer) => answer > 0).length > this.#nodes.length / 2;
  }

  #acquire(owner: Owner, held: HeldLease): void {
    const issuedMs = this.#clock.monotonicMs();
    held.lock = this.#redlock.acquire([this.#nameOf(owner.scope)], this.#leaseMs).then(
      (lock) => {
        held.untilMs = issuedMs + this.#leaseMs;
        return lock;
      },
      () => undefined,
    );
  }

  /**
   * The lock that a script took, as redlock's `Lock`. Only Redis knows when it expires. Its expiration here is infinite,
   * because redlock does not try to extend a lock that it takes for expired.
   */
  #takenByScript(owner: Owner): Lock | undefined {
    if (this.scriptMs === 0) return undefined;
    const name = this.#nameOf(owner.scope);
    return new Lock(this.#redlock, [name], leaseValueOf(owner), [], Number.POSITIVE_INFINITY);
  }
}

/** The value of an owner's lock. It differs for each owner, so that an owner releases only its own lock. */
export const leaseValueOf = ({ token }: Owner): string => token.toString('hex');

const idOf = (owner: Owner): string => owner.token.toString('latin1');
