import Redlock, { Lock } from 'redlock';
import type { Scope } from '../../../kernel/brands.ts';
import type { Clock } from '../../../kernel/clock.ts';
import type { Owner } from '../../store.ts';
import type { RedisClient } from './client.ts';

interface Held {
  /** Undefined: the lock that the script took. */
  lock: Promise<Lock | undefined> | undefined;
  /** On the monotonic clock: until then the lock nodes surely hold the lock. */
  untilMs: number;
  /** The lease had lapsed, and the record does not say so yet. */
  lapsed: boolean;
}

/**
 * The redlock locks that say "the owner is alive". For liveness only: if a lease is lost early, or never obtained, others
 * believe sooner that its owner is dead; the record and its token keep them from doing harm.
 *
 * On the store's own node the scripts take the lock and give it back, with redlock's keys and values, so that it costs no
 * command more. redlock renews it. On lock nodes redlock does all of it.
 *
 * Only acquire, extend and release are used, each with one attempt. redlock's `using()` spins when a lock is lost and
 * throws the routine's result away; its own retries can return a lock that has expired.
 */
export class Leases {
  /** What the scripts are to set, in milliseconds: 0 if the leases live on lock nodes. */
  readonly scriptMs: number;
  readonly #redlock: Redlock;
  readonly #nodes: RedisClient[];
  readonly #leaseMs: number;
  readonly #clock: Clock;
  readonly #nameOf: (scope: Scope) => string;
  /** By owner. */
  readonly #held = new Map<string, Held>();

  /** @param lockNodes none: the leases live on the store's own node */
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

  /** Right after the start. On lock nodes the acquisition is sent now, and the owner does not wait for it. */
  take(owner: Owner): void {
    const held: Held = { lock: undefined, untilMs: Number.NEGATIVE_INFINITY, lapsed: false };
    this.#held.set(idOf(owner), held);
    if (this.scriptMs === 0) this.#acquire(owner, held);
  }

  /** Extends the lease, or takes it again if it had lapsed. False: it had, and {@link lapseMarked} was not called yet. */
  async renew(owner: Owner): Promise<boolean> {
    const held = this.#held.get(idOf(owner));
    if (!held) return true;
    const issuedMs = this.#clock.monotonicMs();
    const lock = await (held.lock ?? this.#takenByScript(owner));
    const extended = await (lock && this.#redlock.extend(lock, this.#leaseMs).catch(() => undefined));
    // Given back in the meantime: a lock taken now would outlive its owner.
    if (!this.#held.has(idOf(owner))) return true;
    if (extended) {
      held.lock = Promise.resolve(extended);
      held.untilMs = issuedMs + this.#leaseMs;
    } else {
      held.lapsed = true;
      this.#acquire(owner, held);
    }
    return !held.lapsed;
  }

  /** The record says now that the lease had lapsed. */
  lapseMarked(owner: Owner): void {
    const held = this.#held.get(idOf(owner));
    if (held) held.lapsed = false;
  }

  /** Whether the lock nodes hold the owner's lease; undefined if the leases live on the store's own node. */
  onLockNodes(owner: Owner): boolean | undefined {
    if (this.scriptMs > 0) return undefined;
    return this.#clock.monotonicMs() < (this.#held.get(idOf(owner))?.untilMs ?? Number.NEGATIVE_INFINITY);
  }

  /** Behind the owner's last write. A lease that cannot be given back lapses by itself. */
  giveBack(owner: Owner): void {
    const id = idOf(owner);
    void this.#held.get(id)?.lock?.then((lock) => lock?.release().catch(() => {}));
    this.#held.delete(id);
  }

  /** Is the lease held? A node that does not answer counts as "yes": without an answer no owner is declared dead. */
  async isHeld(scope: Scope): Promise<boolean> {
    const name = this.#nameOf(scope);
    const answers = await Promise.all(this.#nodes.map((node) => node.exists(name).catch(() => 1)));
    return answers.filter((answer) => answer > 0).length > this.#nodes.length / 2;
  }

  #acquire(owner: Owner, held: Held): void {
    const issuedMs = this.#clock.monotonicMs();
    held.lock = this.#redlock.acquire([this.#nameOf(owner.scope)], this.#leaseMs).then(
      (lock) => {
        held.untilMs = issuedMs + this.#leaseMs;
        return lock;
      },
      () => undefined,
    );
  }

  /** How long it lives is for its node to say. */
  #takenByScript(owner: Owner): Lock | undefined {
    if (this.scriptMs === 0) return undefined;
    const name = this.#nameOf(owner.scope);
    return new Lock(this.#redlock, [name], leaseValueOf(owner), [], Number.POSITIVE_INFINITY);
  }
}

/** The value of the lock that an owner's start takes. Other owners do not know it. */
export const leaseValueOf = ({ token }: Owner): string => token.toString('hex');

const idOf = (owner: Owner): string => owner.token.toString('latin1');
