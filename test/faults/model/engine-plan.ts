import { Readable } from 'node:stream';
import fc from 'fast-check';
import { Slots } from '../../../src/backend/slots.ts';
import type { Call, EngineObserver, Result } from '../../../src/idempotency/call.ts';
import { Engine } from '../../../src/idempotency/engine.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import type { Exchange } from '../../../src/lib/exchange.ts';
import { STEP_MS } from '../../registers/places.ts';
import { type CountedCall, complete, newCall, notSent, openRun, unknown } from '../../support/engine.ts';
import { type FaultyStore, faultyStore } from '../../support/faulty-store.ts';
import { until } from '../../support/until.ts';
import { TIMES, type World } from './worlds.ts';

/** How a request to the backend ends, if it is sent. `unknown_status`: a proxy in front of the backend gave up. */
export type End =
  | 'complete'
  | 'oversize'
  | 'refused'
  | 'not_sent'
  | 'unknown'
  | 'unknown_status'
  | 'throws'
  | 'never';

export interface PlannedCall {
  engine: number;
  end: End;
  /** A command that fails the next time, or the next two times, before or after it is executed. */
  fault: { write: (typeof writes)[number]; when: 'before' | 'after'; times: number } | null;
}

/** Concurrent calls, or the time of a lease. */
export type Step = PlannedCall[] | 'a lease passes';

/** A call and its result. No result: the call is still running. */
export interface Made {
  end: End;
  call: CountedCall;
  response: Exchange;
  result?: Result;
}

const STATUS: Partial<Record<End, number>> = { refused: 401, unknown_status: 502 };
const writes = ['start', 'complete', 'release', 'markInDoubt', 'peek'] as const;
const ends: End[] = [
  ...(['complete', 'complete', 'oversize', 'refused', 'not_sent', 'not_sent'] as const),
  ...(['unknown', 'unknown_status', 'throws', 'never'] as const),
];

const call: fc.Arbitrary<PlannedCall> = fc.record({
  engine: fc.nat({ max: 2 }),
  end: fc.constantFrom(...ends),
  fault: fc.option(
    fc.record({
      write: fc.constantFrom(...writes),
      when: fc.constantFrom('before' as const, 'after' as const),
      times: fc.integer({ min: 1, max: 2 }),
    }),
    { freq: 2 },
  ),
});

export const plans: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    { weight: 4, arbitrary: fc.array(call, { minLength: 1, maxLength: 4 }) },
    { weight: 1, arbitrary: fc.constant('a lease passes' as const) },
  ),
  { minLength: 1, maxLength: 8 },
);

const silent: EngineObserver = {
  ...{ inDoubt() {}, stale() {}, leaseLost() {}, completeLate() {} },
  ...{ lateAnswer() {}, sendsAgain() {}, completeGivenUp() {} },
};

/** Engines on the nodes of a world, and all calls of one key that a plan makes. */
export class EngineRun {
  readonly made: Made[] = [];
  readonly first = newCall();
  lapsed = false;
  faults = 0;
  readonly #world: World;
  readonly #stores: FaultyStore[];
  readonly #engines: Engine[];
  readonly #never: ((exchange: Exchange) => void)[] = [];

  constructor(world: World) {
    this.#world = world;
    this.#stores = world.nodes.map((node) => faultyStore(node));
    const options = { ...TIMES, completeRetryMs: 5000, maxWaiters: 10 };
    this.#engines = this.#stores.map((store) => {
      // The request that never ends may occupy one slot for ever.
      const slots = new Slots({ maxConnections: 2, maxQueued: 10, queueTimeoutMs: 5000 }, systemClock);
      return new Engine(store, slots, options, silent, systemClock);
    });
  }

  /** Runs the plan until every call has its answer, except those that never end. */
  async take(step: Step): Promise<void> {
    if (step !== 'a lease passes') {
      await Promise.all(step.map((planned) => this.call(planned)));
      return;
    }
    this.lapsed = true;
    await this.#world.pass(3 * STEP_MS);
  }

  async call({ engine, end, fault }: PlannedCall): Promise<Made> {
    const response = this.#responseOf(end);
    const made: Made = { end, response, call: this.#callOf(end, response) };
    this.made.push(made);
    if (fault) this.#stores[engine]?.fail(fault.write, fault.when, fault.times);
    if (fault) this.faults++;
    const handled = this.#engines[engine]?.handle(made.call).then((result) => {
      made.result = result;
      if (result.kind === 'executed' && result.exchange.kind === 'oversize') result.exchange.body.resume();
    });
    await until(() => made.result !== undefined || (end === 'never' && made.call.counted.runs === 1));
    if (made.result) await handled;
    return made;
  }

  #responseOf(end: End): Exchange {
    if (end === 'oversize') return { kind: 'oversize', status: 201, headers: [], body: Readable.from(['x']) };
    return complete(`${this.made.length}`, STATUS[end] ?? 201);
  }

  #callOf(end: End, response: Exchange): CountedCall {
    const run = async (): Promise<Exchange> => {
      if (end === 'throws') throw new RangeError('broken');
      if (end === 'not_sent') return notSent;
      if (end === 'unknown') return unknown;
      if (end !== 'never') return response;
      const never = openRun();
      this.#never.push(never.end);
      return await never.run();
    };
    const { scope, fingerprint } = this.first;
    return Object.assign(newCall(run), { scope, fingerprint } satisfies Partial<Call>);
  }

  /** Lets the store work again, and waits until no write is left to be repeated. */
  async quiet(): Promise<void> {
    for (const store of this.#stores) store.heal();
    await until(() => this.#engines.every(({ pendingWrites }) => pendingWrites === 0));
  }

  /** Ends the requests that never end, because their engine must not write to the store of the next run. */
  async [Symbol.asyncDispose](): Promise<void> {
    for (const end of this.#never) end(notSent);
    await until(() => this.#engines.every(({ executing }) => executing === 0));
    await Promise.all(this.#engines.map((engine) => engine.close(1000)));
  }
}
