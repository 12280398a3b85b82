import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished, vi } from 'vitest';
import { type Call, Engine, type EngineObserver, type EngineOptions } from '../../src/idempotency/engine.ts';
import type { Exchange } from '../../src/idempotency/outcome.ts';
import type { StoredResponse } from '../../src/idempotency/record.ts';
import type { Store } from '../../src/idempotency/store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { LONG, openStore, type StoreTimes } from './open-store.ts';
import { newRequest, paid, type RequestParts } from './requests.ts';

/** Opens nodes on one new folder; everything is gone when the test is over. */
export function embedded(): (times?: Partial<StoreTimes>) => Promise<Store> {
  const path = mkdtempSync(join(tmpdir(), 'engine-'));
  const stores: Store[] = [];
  onTestFinished(async () => {
    await Promise.all(stores.map((store) => store.close()));
    rmSync(path, { recursive: true, force: true });
  });
  return async (times) => {
    const store = await openStore({ kind: 'lmdb', path }, times);
    stores.push(store);
    return store;
  };
}

/** What an engine told: the event and the words that came with it. */
export type Told = [event: keyof EngineObserver, detail?: unknown];

export function newEngine(
  store: Store,
  options: Partial<EngineOptions> = {},
): { engine: Engine; told: Told[] } {
  const told: Told[] = [];
  const observer: EngineObserver = {
    inDoubt: (_, { reason }) => told.push(['inDoubt', reason]),
    stale: (write) => told.push(['stale', write]),
    tookOver: () => told.push(['tookOver']),
    leaseLost: () => told.push(['leaseLost']),
    settleLate: () => told.push(['settleLate']),
  };
  const { leaseMs, retentionMs } = LONG;
  const all = { leaseMs, retentionMs, settleRetryMs: 2000, maxWaiters: 100, ...options };
  const engine = new Engine(store, all, observer, systemClock);
  onTestFinished(() => engine.close(0));
  return { engine, told };
}

export type RunCall = Call & { run: ReturnType<typeof vi.fn<() => Promise<Exchange>>> };

/** A call under a new key unless `parts` name one; its run ends with `exchange`, or as the function does. */
export function newCall(
  exchange: Exchange | (() => Promise<Exchange>) = complete(),
  { waitMs = 0, gone, ...parts }: RequestParts & { waitMs?: number; gone?: AbortSignal } = {},
): RunCall {
  const { token: _, ...request } = newRequest(parts);
  const run = vi.fn(typeof exchange === 'function' ? exchange : async () => exchange);
  return { ...request, waitMs, releaseStatuses: [401, 403, 429], run, ...(gone ? { gone } : {}) };
}

/** The same request under the same key; its run would end with a result of its own. */
export function retryOf(call: Call, changes: { waitMs?: number; gone?: AbortSignal } = {}): RunCall {
  return { ...call, ...changes, run: vi.fn(async () => complete('retry')) };
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
