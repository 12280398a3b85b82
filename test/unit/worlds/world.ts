import type { Scope, Token } from '../../../src/lib/brands.ts';
import type { Clock } from '../../../src/lib/clock.ts';
import { StoreUnavailable } from '../../../src/store/contract.ts';
import type { Create, Register, Replace, Reply, Seen } from '../../../src/store/register.ts';
import { Random } from '../../faults/chaos/random.ts';
import type { MemoryRegister } from '../../support/memory-register.ts';

/** Only the order of events and the ratios of times matter. */
export const LEASE_MS = 60_000;
const LONGEST_DELAY_MS = 5 * LEASE_MS;

interface Event {
  atMs: number;
  act(): void;
}

/** Virtual time: everything that waits is here, so a seed always gives the same history. */
export class World {
  readonly random: Random;
  nowMs = 1_000_000;
  readonly #events: Event[] = [];

  constructor(seed: number) {
    this.random = new Random(seed);
  }

  readonly clock: Clock = {
    monotonicMs: () => this.nowMs,
    wallMs: () => Math.trunc(this.nowMs),
    after: (ms, act) => this.after(ms, act),
  };

  chance(probability: number): boolean {
    return this.random.next() < probability;
  }

  /** Returns a function that cancels it. */
  after(ms: number, act: () => void): () => void {
    const added = { atMs: this.nowMs + ms, act };
    // Events of one moment keep their order.
    const at = this.#events.findLastIndex((event) => event.atMs <= added.atMs) + 1;
    this.#events.splice(at, 0, added);
    return () => {
      const left = this.#events.indexOf(added);
      if (left >= 0) this.#events.splice(left, 1);
    };
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => this.after(ms, resolve));
  }

  /** Until nothing waits any more. */
  async run(): Promise<void> {
    for (;;) {
      // A tick comes when no promise has anything left to do.
      await new Promise<void>((resolve) => process.nextTick(resolve));
      const event = this.#events.shift();
      if (!event) return;
      this.nowMs = event.atMs;
      event.act();
    }
  }
}

export interface Network {
  /** The share of commands that fail: refused, lost on the way, without a reply, or executed later. */
  faults: number;
  /** Lock nodes hold the leases. */
  lockNodes: boolean;
  /** The store waits for replicas, and a failover loses what may be lost. */
  failovers: boolean;
}

/** What is between a ledger and its register. */
export class FaultyRegister implements Register {
  readonly replicates: boolean;
  readonly isLeased?: (id: Scope) => Promise<boolean>;
  readonly #register: MemoryRegister;
  readonly #world: World;
  readonly #network: Network;

  constructor(register: MemoryRegister, world: World, network: Network) {
    this.#register = register;
    this.#world = world;
    this.#network = network;
    this.replicates = network.failovers;
    // A node that does not answer counts as having the lease.
    if (network.lockNodes)
      this.isLeased = (id) =>
        this.#send(async () => (await register.read(id))?.isLeased === true).catch(() => true);
  }

  create(id: Scope, write: Create): Promise<Reply> {
    return this.#send(async () => this.#unasked(await this.#register.create(id, write)));
  }

  replace(id: Scope, write: Replace): Promise<Reply> {
    // Lock nodes cannot be asked within a write.
    const asked = this.#network.lockNodes ? { ...write, unlessLeased: false } : write;
    return this.#send(async () => {
      if (write.mayBeLost && this.#network.failovers && this.#world.chance(0.5)) return { done: true };
      return this.#unasked(await this.#register.replace(id, asked));
    });
  }

  read(id: Scope): Promise<Seen | undefined> {
    return this.#send(async () => {
      const seen = await this.#register.read(id);
      return seen && this.#network.lockNodes ? { ...seen, isLeased: undefined } : seen;
    });
  }

  renew(id: Scope, token: Token, leaseMs: number): Promise<'kept' | 'taken' | 'lost'> {
    return this.#send(() => this.#register.renew(id, token, leaseMs));
  }

  endLease(id: Scope, token: Token): Promise<void> {
    return this.#send(() => this.#register.endLease(id, token));
  }

  list = (...query: Parameters<Register['list']>) => this.#register.list(...query);
  countOpen = (...query: Parameters<Register['countOpen']>) => this.#register.countOpen(...query);
  audit = (id: Scope) => this.#register.audit(id);
  readMark = (...mode: Parameters<Register['readMark']>) => this.#register.readMark(...mode);
  mark = (...mode: Parameters<Register['mark']>) => this.#register.mark(...mode);
  health = () => this.#register.health();
  close = async () => {};

  #unasked(reply: Reply): Reply {
    if (reply.done || !reply.held || !this.#network.lockNodes) return reply;
    return { done: false, held: { ...reply.held, isLeased: undefined } };
  }

  async #send<T>(command: () => Promise<T>): Promise<T> {
    const world = this.#world;
    const { faults } = this.#network;
    await world.sleep(world.random.next() * 2000);
    const dice = world.random.next();
    if (dice < faults * 0.2) throw new StoreUnavailable('refused', { maybeWritten: false });
    if (dice < faults) {
      if (dice > faults * 0.7)
        world.after(world.random.next() ** 2 * LONGEST_DELAY_MS, () => void command().catch(() => {}));
      else if (dice > faults * 0.4) await command().catch(() => {});
      await world.sleep(world.random.next() * LEASE_MS * 0.2);
      throw new StoreUnavailable('no reply');
    }
    const reply = await command();
    await world.sleep(world.random.next() * 2000);
    return reply;
  }
}
