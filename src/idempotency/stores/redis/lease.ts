import Redlock, { type Lock } from 'redlock';
import type { Scope } from '../../../kernel/brands.ts';
import type { Owner } from '../../store.ts';
import type { RedisClient } from './connect.ts';

/**
 * The redlock locks that say "the owner is alive". Liveness only: a lease that is lost early, or never obtained, makes
 * others think sooner that its owner has gone; the record and its token keep them from doing harm.
 *
 * Only acquire, extend and release are used, each with one attempt. redlock's `using()` spins when a lock is lost and
 * throws the routine's result away; its own retries can return a lock that has expired.
 */
export class Leases {
  readonly #redlock: Redlock;
  readonly #nodes: RedisClient[];
  readonly #leaseMs: number;
  readonly #nameOf: (scope: Scope) => string;
  readonly #held = new Map<string, Promise<Lock | undefined>>();

  constructor(nodes: RedisClient[], leaseMs: number, nameOf: (scope: Scope) => string) {
    this.#nodes = nodes;
    this.#leaseMs = leaseMs;
    this.#nameOf = nameOf;
    this.#redlock = new Redlock(nodes, { retryCount: 0 });
  }

  /** Sends the acquisition at once; nobody has to wait for it. */
  take(owner: Owner): void {
    const lock = this.#redlock.acquire([this.#nameOf(owner.scope)], this.#leaseMs).catch(() => undefined);
    this.#held.set(idOf(owner), lock);
  }

  /** Extends, or takes again what had lapsed. False: it had. */
  async renew(owner: Owner): Promise<boolean> {
    const lock = await this.#held.get(idOf(owner));
    const extended = await (lock && this.#redlock.extend(lock, this.#leaseMs).catch(() => undefined));
    // Given back in the meantime: a lock taken now would outlive its owner.
    if (!this.#held.has(idOf(owner))) return true;
    if (!extended) this.take(owner);
    else this.#held.set(idOf(owner), Promise.resolve(extended));
    return extended !== undefined;
  }

  /** A lease that cannot be given back lapses by itself. */
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
}

const idOf = (owner: Owner): string => owner.token.toString('latin1');
