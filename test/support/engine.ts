import { randomUUID } from 'node:crypto';
import { type SlotOptions, Slots } from '../../src/backend/slots.ts';
import type { DoubtLookups } from '../../src/doubts/lookups.ts';
import type { Call, EngineOptions, InDoubtPolicy, Result } from '../../src/idempotency/call.ts';
import { Engine } from '../../src/idempotency/engine.ts';
import { Ledger, type Store } from '../../src/ledger/ledger.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import type { BackendResponse, Exchange } from '../../src/lib/exchange.ts';
import type { EventName } from '../../src/telemetry/emit.ts';
import { emitTo } from './emit.ts';
import { type FaultyStore, faultyStore } from './faulty-store.ts';
import { MemoryRegister } from './memory-register.ts';
import { GATEWAY_ID, LONG, type StoreTimes } from './open-store.ts';
import { newRequest, paid, type RequestParts } from './requests.ts';
import { until } from './until.ts';

/** An event that an engine has told, with its details. */
export type EngineEvent = [event: EventName, detail?: unknown];

export interface RigEngine {
  engine: Engine;
  slots: Slots;
  events: EngineEvent[];
}

/** So many slots that no request waits for one. */
const PLENTY: SlotOptions = { maxConnections: 1000, maxQueued: 1000, queueTimeoutMs: 20_000 };

/** Engines on one register of tests. */
export class Rig {
  readonly register = new MemoryRegister(systemClock.monotonicMs);
  readonly #engines: Engine[] = [];

  async store(times: Partial<StoreTimes> = {}): Promise<Store> {
    return new Ledger(this.register, { gatewayId: GATEWAY_ID, lifetimes: { ...LONG, ...times } });
  }

  async faultyStore(times?: Partial<StoreTimes>): Promise<FaultyStore> {
    return faultyStore(await this.store(times));
  }

  /** An engine with a separate set of slots, unless `options` limits or brings them. */
  engine(
    store: Store,
    options: Partial<EngineOptions & SlotOptions> & { slots?: Slots } = {},
    lookups?: DoubtLookups,
    clock: Clock = systemClock,
  ): RigEngine {
    const events: EngineEvent[] = [];
    const emit = emitTo({
      in_doubt: ({ cause, reason }) => events.push(['in_doubt', { cause, reason }]),
      stale: ({ write }) => events.push(['stale', write]),
      late_answer: ({ late, stored }) => events.push(['late_answer', { late, stored }]),
      sent_again: () => events.push(['sent_again']),
      lease_lost: () => events.push(['lease_lost']),
      complete_late: () => events.push(['complete_late']),
      complete_given_up: () => events.push(['complete_given_up']),
    });
    const { leaseMs, inDoubtRetentionMs } = LONG;
    const all = { leaseMs, inDoubtRetentionMs, completeRetryMs: 2000, maxWaiters: 5000, ...options };
    const slots = options.slots ?? new Slots({ ...PLENTY, ...options }, clock);
    const engine = new Engine(store, slots, all, emit, clock, lookups);
    this.#engines.push(engine);
    return { engine, slots, events };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#engines.map((engine) => engine.close(0)));
  }
}

/** A call that counts its runs. */
export type CountedCall = Call & { readonly counted: { runs: number } };

interface ExecutingCall {
  call: CountedCall;
  first: Promise<Result>;
  end: (exchange?: Exchange) => void;
}

/** A call that `engine` executes until `end` is called. `first` is its result. */
export async function executing(engine: Engine, parts?: CallParts): Promise<ExecutingCall> {
  const { run, end } = openRun();
  const call = newCall(run, parts);
  const first = engine.handle(call);
  await until(() => engine.executing === 1);
  return { call, first, end };
}

type Run = (maySend: () => boolean) => Promise<Exchange>;

function counting(run: Run): Pick<CountedCall, 'run' | 'counted'> {
  const counted = { runs: 0 };
  const countedRun: Run = (maySend) => {
    counted.runs++;
    return run(maySend);
  };
  return { counted, run: countedRun };
}

interface CallParts extends RequestParts {
  waitMs?: number;
  gone?: AbortSignal;
  inDoubt?: InDoubtPolicy;
}

/** A call under a new key unless `parts` name one; its run ends with `exchange`, or as the function does. */
export function newCall(
  exchange: Exchange | Run = complete(),
  { waitMs = 0, gone, inDoubt = 'hold', ...parts }: CallParts = {},
): CountedCall {
  const { token: _, ...request } = newRequest(parts);
  const run = typeof exchange === 'function' ? exchange : async () => exchange;
  return {
    ...request,
    ...counting(run),
    waitMs,
    inDoubt,
    statuses: { release: [401, 429], unknown: [502, 503, 504] },
    ...(gone ? { gone } : {}),
  };
}

/** The same request under the same key, with another request id; its run would end with another result. */
export function retryOf(
  call: Call,
  changes: Partial<Pick<Call, 'waitMs' | 'gone' | 'operation' | 'inDoubt'>> = {},
): CountedCall {
  return { ...call, requestId: randomUUID(), ...changes, ...counting(async () => complete('retry')) };
}

/** What a retry of `first` gets: its response, or the one with this id and status. */
export const replayFor = ({ requestId }: Call, id?: string, status?: number): Result => ({
  ...{ kind: 'replayed', response: responseOf(id, status) },
  requestId,
});

export function responseOf(id = 'p-1', status = 201): BackendResponse {
  return { ...paid(id).response, status };
}

export function complete(id?: string, status?: number): Exchange {
  return { kind: 'complete', response: responseOf(id, status) };
}

export const notSent: Exchange = { kind: 'not_sent', reason: 'ECONNREFUSED' };
export const unknown: Exchange = { kind: 'unknown', reason: 'UND_ERR_SOCKET', timedOut: false };

/** A run that lasts until `end` is called. */
export function openRun(): { run: () => Promise<Exchange>; end(exchange?: Exchange): void } {
  const { promise, resolve } = Promise.withResolvers<Exchange>();
  return { run: () => promise, end: (exchange = complete()) => resolve(exchange) };
}
