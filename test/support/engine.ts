import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Call, EngineObserver, InDoubtPolicy } from '../../src/idempotency/call.ts';
import { type DoubtSolver, Engine, type EngineOptions } from '../../src/idempotency/engine.ts';
import type { Exchange } from '../../src/idempotency/outcome.ts';
import type { StoredResponse } from '../../src/idempotency/record.ts';
import type { Store } from '../../src/idempotency/store.ts';
import { type Clock, systemClock } from '../../src/kernel/clock.ts';
import { FaultyStore } from './faulty-store.ts';
import { LONG, openStore, type StoreTimes } from './open-store.ts';
import { newRequest, paid, type RequestParts } from './requests.ts';

/** What an engine told: the event and the words that came with it. */
export type Told = [event: keyof EngineObserver, detail?: unknown];

/** Nodes on one new folder, and engines on them; everything is closed and removed at its end. */
export class Rig {
  readonly #path = mkdtempSync(join(tmpdir(), 'engine-'));
  readonly #stores: Store[] = [];
  readonly #engines: Engine[] = [];

  async store(times?: Partial<StoreTimes>): Promise<Store> {
    const store = await openStore({ kind: 'lmdb', path: this.#path }, times);
    this.#stores.push(store);
    return store;
  }

  async faultyStore(times?: Partial<StoreTimes>): Promise<FaultyStore> {
    return new FaultyStore(await this.store(times));
  }

  engine(
    store: Store,
    options: Partial<EngineOptions> = {},
    solver?: DoubtSolver,
    clock: Clock = systemClock,
  ): { engine: Engine; told: Told[] } {
    const told: Told[] = [];
    const observer: EngineObserver = {
      inDoubt: (_, { reason }) => told.push(['inDoubt', reason]),
      stale: (write) => told.push(['stale', write]),
      lateAnswer: (_, late, stands) => told.push(['lateAnswer', { late, stands }]),
      sendsAgain: () => told.push(['sendsAgain']),
      tookOver: () => told.push(['tookOver']),
      leaseLost: () => told.push(['leaseLost']),
      settleLate: () => told.push(['settleLate']),
      settleGivenUp: () => told.push(['settleGivenUp']),
    };
    const { leaseMs, retentionMs } = LONG;
    const all = { leaseMs, retentionMs, settleRetryMs: 2000, maxWaiters: 100, ...options };
    const engine = new Engine(store, all, observer, clock, solver);
    this.#engines.push(engine);
    return { engine, told };
  }

  /** An engine whose clock is not the system's in some way. */
  engineAt(store: Store, clock: Partial<Clock>): { engine: Engine; told: Told[] } {
    return this.engine(store, {}, undefined, { ...systemClock, ...clock });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#engines.map((engine) => engine.close(0)));
    await Promise.all(this.#stores.map((store) => store.close()));
    rmSync(this.#path, { recursive: true, force: true });
  }
}

/** A call that counts its runs. */
export type CountedCall = Call & { readonly counted: { runs: number } };

type Run = (mayStart: () => boolean) => Promise<Exchange>;

function counting(run: Run): Pick<CountedCall, 'run' | 'counted'> {
  const counted = { runs: 0 };
  const countedRun: Run = (mayStart) => {
    counted.runs++;
    return run(mayStart);
  };
  return { counted, run: countedRun };
}

/** A call under a new key unless `parts` name one; its run ends with `exchange`, or as the function does. */
export function newCall(
  exchange: Exchange | Run = complete(),
  {
    waitMs = 0,
    gone,
    inDoubt = 'hold',
    ...parts
  }: RequestParts & { waitMs?: number; gone?: AbortSignal; inDoubt?: InDoubtPolicy } = {},
): CountedCall {
  const { token: _, ...request } = newRequest(parts);
  const run = typeof exchange === 'function' ? exchange : async () => exchange;
  return {
    ...request,
    ...counting(run),
    waitMs,
    inDoubt,
    releaseStatuses: [401, 403, 429],
    ...(gone ? { gone } : {}),
  };
}

/** The same request under the same key; its run would end with a result of its own. */
export function retryOf(call: Call, changes: { waitMs?: number; gone?: AbortSignal } = {}): CountedCall {
  return { ...call, ...changes, ...counting(async () => complete('retry')) };
}

export function responseOf(id = 'p-1', status = 201): StoredResponse {
  const settlement = paid(id);
  if (settlement.kind !== 'response') throw new TypeError('a payment has a response');
  return { ...settlement.response, status };
}

export function complete(id?: string, status?: number): Exchange {
  return { kind: 'complete', response: responseOf(id, status) };
}

export const notSent: Exchange = { kind: 'not_sent', reason: 'ECONNREFUSED' };
export const unknown: Exchange = { kind: 'unknown', reason: 'UND_ERR_SOCKET', timedOut: false };

/** A run that lasts until it is told to end. */
export function openRun(): { run: () => Promise<Exchange>; end(exchange?: Exchange): void } {
  const { promise, resolve } = Promise.withResolvers<Exchange>();
  return { run: () => promise, end: (exchange = complete()) => resolve(exchange) };
}
