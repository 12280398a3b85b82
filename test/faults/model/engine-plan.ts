import fc from 'fast-check';
import type { Call, EngineObserver, Result } from '../../../src/idempotency/call.ts';
import { Engine } from '../../../src/idempotency/engine.ts';
import type { Exchange } from '../../../src/idempotency/outcome.ts';
import { systemClock } from '../../../src/kernel/clock.ts';
import { type CountedCall, complete, newCall, notSent, openRun, unknown } from '../../support/engine.ts';
import { FaultyStore } from '../../support/faulty-store.ts';
import { until } from '../../support/until.ts';
import { TIMES, type World } from './worlds.ts';

/** How a request to the backend ends, should it be sent. */
export type End = 'complete' | 'refused' | 'not_sent' | 'unknown' | 'throws' | 'never';

interface PlannedCall {
  engine: number;
  end: End;
  /** A command that fails the next time, or the next two: before it was done, or after. */
  fault: { write: (typeof writes)[number]; when: 'before' | 'after'; times: number } | null;
}

/** Calls made at once, or the passing of a lease. */
export type Step = PlannedCall[] | 'a lease passes';

/** What came of a call. No result: it is still under way. */
export interface Made {
  end: End;
  call: CountedCall;
  response: ReturnType<typeof complete>;
  result?: Result;
}

const writes = ['claim', 'begin', 'settle', 'release', 'markInDoubt'] as const;
const ends: End[] = ['complete', 'complete', 'refused', 'not_sent', 'not_sent', 'unknown', 'throws', 'never'];

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

const nobody: EngineObserver = {
  ...{ inDoubt() {}, stale() {}, tookOver() {}, leaseLost() {}, settleLate() {} },
  ...{ lateAnswer() {}, sendsAgain() {}, settleGivenUp() {} },
};

/** Engines on the nodes of a world, and all calls of one key that a plan makes of them. */
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
    this.#stores = world.nodes.map((node) => new FaultyStore(node));
    const options = { ...TIMES, settleRetryMs: 5000, maxWaiters: 10 };
    this.#engines = this.#stores.map((store) => new Engine(store, options, nobody, systemClock));
  }

  /** Ends when every call has its answer, but for those that never end. */
  async take(step: Step): Promise<void> {
    if (step !== 'a lease passes') {
      await Promise.all(step.map((planned) => this.call(planned)));
      return;
    }
    this.lapsed = true;
    await this.#world.pass(TIMES.leaseMs + 10_000);
  }

  async call({ engine, end, fault }: PlannedCall): Promise<Made> {
    const response = complete(`${this.made.length}`, end === 'refused' ? 401 : 201);
    const made: Made = { end, response, call: this.#callOf(end, response) };
    this.made.push(made);
    if (fault) this.#stores[engine]?.fail(fault.write, fault.when, fault.times);
    if (fault) this.faults++;
    const handled = this.#engines[engine]?.handle(made.call).then((result) => {
      made.result = result;
    });
    await until(() => made.result !== undefined || (end === 'never' && made.call.counted.runs === 1));
    if (made.result) await handled;
    return made;
  }

  #callOf(end: End, response: Exchange): CountedCall {
    const run = async (): Promise<Exchange> => {
      if (end === 'throws') throw new RangeError('broken');
      if (end !== 'never') return { not_sent: notSent, unknown, complete: response, refused: response }[end];
      const never = openRun();
      this.#never.push(never.end);
      return await never.run();
    };
    const { scope, fingerprint } = this.first;
    return Object.assign(newCall(run), { scope, fingerprint } satisfies Partial<Call>);
  }

  /** The store is well again, and no write is left to be repeated. */
  async quiet(): Promise<void> {
    for (const store of this.#stores) store.heal();
    await until(() => this.#engines.every(({ pendingWrites }) => pendingWrites === 0));
    await this.#world.quiet();
  }

  /** What never ended ends after all: its engine must not write to a store that is closed. */
  async [Symbol.asyncDispose](): Promise<void> {
    for (const end of this.#never) end(notSent);
    await until(() => this.#engines.every(({ executing }) => executing === 0));
    await Promise.all(this.#engines.map((engine) => engine.close(1000)));
  }
}
