import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { expect } from 'vitest';
import type { Store } from '../../../src/ledger/ledger.ts';
import type { Completion } from '../../../src/lib/exchange.ts';
import { newToken } from '../../../src/lib/random.ts';
import {
  type Execution,
  type Resolution,
  type StartAnswer,
  StoreUnavailable,
} from '../../../src/store/contract.ts';
import { STEP_MS } from '../../registers/places.ts';
import { newRequest, otherOf, paid } from '../../support/requests.ts';
import type { World } from './worlds.ts';

/** What happens on both stores. Numbers choose one of the keys, gateways and earlier attempts. */
type Step =
  | { do: 'start' | 'restart'; key: number; node: number; isOther: boolean }
  | { do: 'race'; key: number; racers: number }
  | { do: 'renew' | 'complete' | 'release' | 'markInDoubt' | 'takeBack'; attempt: number; wasTold: boolean }
  | { do: 'peek'; key: number; node: number; isOther: boolean }
  | { do: 'resolve'; key: number; as: Resolution['as']; seen: number | null }
  | { do: 'pass'; ms: number };

const KEYS = 2;

const key = fc.nat({ max: KEYS - 1 });
const node = fc.nat({ max: 2 });
const seldom = fc.nat({ max: 5 }).map((number) => number === 0);
/** Most of the time the latest one, because most writes of the others are stale. */
const attempt = fc.oneof(
  { weight: 3, arbitrary: fc.constant(0) },
  { weight: 1, arbitrary: fc.nat({ max: 9 }) },
);
const as = fc.constantFrom('completed' as const, 'released' as const);
/** Less than a lease, more than one, half the retention, all of it, the hour of a void token, the life of a record in doubt. */
const ms = fc.constantFrom(...[1, 3, 27, 51, 164, 228].map((steps) => steps * STEP_MS));
const owners = [
  'renew',
  'complete',
  'complete',
  'release',
  'markInDoubt',
  'markInDoubt',
  'takeBack',
] as const;

export const histories: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    { weight: 4, arbitrary: fc.record({ do: fc.constant('start' as const), key, node, isOther: seldom }) },
    { weight: 3, arbitrary: fc.record({ do: fc.constant('restart' as const), key, node, isOther: seldom }) },
    {
      weight: 1,
      arbitrary: fc.record({ do: fc.constant('race' as const), key, racers: fc.integer({ min: 2, max: 5 }) }),
    },
    { weight: 7, arbitrary: fc.record({ do: fc.constantFrom(...owners), attempt, wasTold: seldom }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('peek' as const), key, node, isOther: seldom }) },
    {
      weight: 1,
      arbitrary: fc.record({
        do: fc.constant('resolve' as const),
        key,
        as,
        seen: fc.option(fc.nat({ max: 9 })),
      }),
    },
    { weight: 3, arbitrary: fc.record({ do: fc.constant('pass' as const), ms }) },
  ),
  { maxLength: 40, size: '+1' },
);

/** One execution on both stores, each of which remembers what it wrote for it. */
interface Attempt {
  node: number;
  executions: readonly [expected: Execution, actual: Execution];
  result: Completion;
}

/** The same history on the reference and on a real store. Every answer and every record must be the same. */
export class History {
  readonly #worlds: readonly [expected: World, actual: World];
  readonly #requests = Array.from({ length: KEYS }, () => {
    const request = newRequest();
    return [request, otherOf(request)] as const;
  });
  readonly #attempts: Attempt[] = [];

  constructor(expected: World, actual: World) {
    this.#worlds = [expected, actual];
  }

  async take(step: Step): Promise<void> {
    switch (step.do) {
      case 'start':
      case 'restart': {
        const { executions } = this.#attempt(step.key, step.node, step.isOther);
        await this.#same(step.node, (store, n) => store[step.do](executions[n]));
        break;
      }
      case 'race':
        await this.#race(step.key, step.racers);
        break;
      case 'peek':
        await this.#same(step.node, (store) => store.peek(this.#request(step.key, step.isOther)));
        break;
      case 'resolve':
        await this.#resolve(step);
        break;
      case 'pass':
        for (const world of this.#worlds) await world.pass(step.ms);
        break;
      default: {
        const one = this.#attempts.at(-1 - (step.attempt % (this.#attempts.length || 1)));
        if (!one) return;
        const { node: at, executions, result } = one;
        await this.#same(at, (store, n) => {
          if (step.do === 'complete') return store.complete(executions[n], result, step.wasTold);
          return store[step.do](executions[n]);
        });
      }
    }
    await this.#compare();
  }

  #attempt(number: number, at: number, isOther: boolean): Attempt {
    const execution = { ...this.#request(number, isOther), token: newToken(), requestId: randomUUID() };
    const { length } = this.#attempts;
    const result: Completion = length % 4 === 3 ? { kind: 'tombstone', status: 201 } : paid(`${length}`);
    const made: Attempt = { node: at, executions: [{ ...execution }, { ...execution }], result };
    this.#attempts.push(made);
    return made;
  }

  /** Several starts at once. The answers must match some order of the starts, with the winner first. */
  async #race(number: number, racers: number): Promise<void> {
    const attempts = Array.from({ length: racers }, (_, n) => this.#attempt(number, n % 3, false));
    const [expected, actual] = this.#worlds;
    const answers = await Promise.all(
      attempts.map(({ node: at, executions }) => (actual.nodes[at] as Store).start(executions[1])),
    );
    const order = attempts.map((one, n) => ({ one, kind: (answers[n] as StartAnswer).kind }));
    const won = ({ kind }: { kind: string }) => Number(kind === 'started');
    for (const { one, kind } of order.toSorted((a, b) => won(b) - won(a)))
      expect((await (expected.nodes[one.node] as Store).start(one.executions[0])).kind).toBe(kind);
  }

  /** An operator has seen the token that the record has now, or that of an attempt. */
  async #resolve({ key: number, as: how, seen }: Step & { do: 'resolve' }): Promise<void> {
    const { scope } = this.#request(number, false);
    const chosen =
      seen === null ? undefined : this.#attempts[seen % (this.#attempts.length || 1)]?.executions[0].token;
    const resolution: Resolution =
      how === 'completed' ? { as: how, completion: paid('by hand') } : { as: how };
    const tokens = await Promise.all(
      this.#worlds.map(async ({ nodes }) => chosen ?? (await nodes[0].get(scope))?.token),
    );
    await this.#same(0, async (store, n) => {
      const token = tokens[n];
      return token && store.resolve(scope, token, resolution, { by: 'ada', reason: 'the books show it' });
    });
  }

  /** Every record, from another gateway than the one that wrote. */
  async #compare(): Promise<void> {
    const tokens = this.#attempts.map(({ executions: [{ token }] }) => token);
    for (const [{ scope }] of this.#requests) {
      await this.#same(2, async (store) => {
        const record = await store.get(scope);
        if (!record) return undefined;
        const { state, completion, requestId, fingerprint, wasInDoubt, gatewayId, token } = record;
        const rest = { state, completion, requestId, fingerprint, wasInDoubt, gatewayId };
        const left = Math.floor(((await store.expiresInMs(scope)) ?? 0) / STEP_MS);
        // Nothing depends on which new token a resolution has written.
        return { ...rest, left, isOf: tokens.map((one) => one.equals(token)) };
      });
    }
  }

  /** The lists and counts for operators. In Redis they take longer than the other commands. */
  async compareCounts(): Promise<void> {
    await this.#same(2, async (store) => {
      const { operations, oldestSinceMs, resolutions } = await store.countDoubts();
      const { records } = await store.list({ inDoubt: true, limit: 1000 });
      return [
        operations,
        oldestSinceMs !== undefined,
        resolutions,
        records.map(({ scope }) => scope).toSorted(),
      ];
    });
  }

  async #same(at: number, act: (store: Store, n: 0 | 1) => Promise<unknown>): Promise<void> {
    const stores = this.#worlds.map(({ nodes }) => nodes[at] as Store);
    const [expected, actual] = await Promise.all(stores.map((store, n) => wordsOf(act(store, n as 0 | 1))));
    expect(actual).toEqual(expected);
  }

  #request(number: number, isOther: boolean): Execution {
    return (this.#requests[number] as readonly Execution[])[isOther ? 1 : 0] as Execution;
  }
}

async function wordsOf(answer: Promise<unknown>): Promise<unknown> {
  try {
    const value = await answer;
    // When it was marked in doubt is the real time of each store.
    return typeof value === 'object' && value !== null && 'sinceMs' in value
      ? { ...value, sinceMs: 0 }
      : value;
  } catch (error) {
    if (!(error instanceof StoreUnavailable)) throw error;
    return [error.name, error.maybeWritten];
  }
}
