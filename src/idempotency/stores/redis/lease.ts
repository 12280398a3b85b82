import Redlock, { Lock } from 'redlock';
import type { Scope } from '../../../kernel/brands.ts';
import type { Owner } from '../../store.ts';
import type { RedisClient } from './connect.ts';

/**
 * The redlock locks that say "the owner is alive". Liveness only: a lease that is lost early, or never obtained, makes
 * others think sooner that its owner has gone; the record and its token keep them from doing harm.
 *
 * On the store's own node the scripts that begin and end an execution take the lock and give it back, with the keys and
 * values that redlock uses: no command more. On nodes of their own, and to renew, redlock does it.
 *
 * Only acquire, extend and release are used, each with one attempt. redlock's `using()` spins when a lock is lost and
 * throws the routine's result away; its own retries can return a lock that has expired.
 */
export class Leases {
  /** What the scripts are to set, in milliseconds: 0 where the leases live on nodes of their own. */
  readonly scriptMs: number;
  readonly #redlock: Redlock;
  readonly #nodes: RedisClient[];
  readonly #leaseMs: number;
  readonly #nameOf: (scope: Scope) => string;
  /** By owner. Undefined: the lock that its begin took. */
  readonly #held = new Map<string, Promise<Lock | undefined> | undefined>();

  /** @param lockNodes none: the leases live on the store's own */
  constructor(
    store: RedisClient,
    lockNodes: RedisClient[],
    leaseMs: number,
    nameOf: (scope: Scope) => string,
  ) {
    this.#nodes = lockNodes.length > 0 ? lockNodes : [store];
    this.scriptMs = lockNodes.length > 0 ? 0 : leaseMs;
    this.#leaseMs = leaseMs;
    this.#nameOf = nameOf;
    this.#redlock = new Redlock(this.#nodes, { retryCount: 0 });
  }

  /** The value of the lock that an owner's begin takes: nobody else knows it. */
  valueOf({ token }: Owner): string {
    return token.toString('hex');
  }

  /** Right before the begin. Sends the acquisition at once where no script does it; nobody has to wait for it. */
  take(owner: Owner): void {
    this.#held.set(idOf(owner), this.scriptMs > 0 ? undefined : this.#acquire(owner));
  }

  /** Extends, or takes again what had lapsed. False: it had. */
  async renew(owner: Owner): Promise<boolean> {
    if (!this.#held.has(idOf(owner))) return true;
    const lock = await (this.#held.get(idOf(owner)) ?? this.#ofBegin(owner));
    const extended = await (lock && this.#redlock.extend(lock, this.#leaseMs).catch(() => undefined));
    // Given back in the meantime: a lock taken now would outlive its owner.
    if (!this.#held.has(idOf(owner))) return true;
    this.#held.set(idOf(owner), extended ? Promise.resolve(extended) : this.#acquire(owner));
    return extended !== undefined;
  }

  /** Behind the owner's last write. A lease that cannot be given back lapses by itself. */
  async giveBack(owner: Owner): Promise<void> {
    const held = this.#held.get(idOf(owner));
    this.#held.delete(idOf(owner));
    const lock = await held;
    await lock?.release().catch(() => {});
  }

  /** Does anybody hold the lease? A node that does not answer counts as "yes": nobody is declared gone in the dark. */
  async isHeld(scope: Scope): Promise<boolean> {
    const name = this.#nameOf(scope);
    const answers = await Promise.all(this.#nodes.map((node) => node.exists(name).catch(() => 1)));
    return answers.filter((answer) => answer > 0).length > this.#nodes.length / 2;
  }

  #acquire(owner: Owner): Promise<Lock | undefined> {
    return this.#redlock.acquire([this.#nameOf(owner.scope)], this.#leaseMs).catch(() => undefined);
  }

  /** How long it lives is the node's to say. */
  #ofBegin(owner: Owner): Lock | undefined {
    if (this.scriptMs === 0) return undefined;
    const name = this.#nameOf(owner.scope);
    return new Lock(this.#redlock, [name], this.valueOf(owner), [], Number.POSITIVE_INFINITY);
  }
}

const idOf = (owner: Owner): string => owner.token.toString('latin1');
