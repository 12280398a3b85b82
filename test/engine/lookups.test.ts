import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, onTestFinished } from 'vitest';
import { Desk } from '../../src/doubts/desk.ts';
import { type Lookup, Lookups } from '../../src/doubts/lookups.ts';
import type { ShownRecord } from '../../src/doubts/records.ts';
import type { Store } from '../../src/ledger/ledger.ts';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import type { LookupAnswer } from '../../src/lib/exchange.ts';
import { bring, replayOf } from '../contract/states.ts';
import { newCall, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { movableClock } from '../support/movable-clock.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

const executed: LookupAnswer = { kind: 'executed', said: 'GET answered 200', completion: paid('looked up') };
const notExecuted: LookupAnswer = { kind: 'not_executed', said: 'GET answered 404' };
const undecided: LookupAnswer = { kind: 'undecided', said: 'GET answered 500' };
const failed: LookupAnswer = { kind: 'failed', said: 'GET failed: ECONNRESET' };

type Answering = (time: number) => LookupAnswer | Promise<LookupAnswer>;

/** Lookups with a backend that gives the test's answers. Records its questions and the observer's events. */
function open(store: Store, answering: Answering, more: Partial<Lookup> = {}, clock: Clock = systemClock) {
  const asked: { key: string; atMs: number }[] = [];
  const events: unknown[][] = [];
  const lookup: Lookup = {
    firstAfterMs: 10,
    maxPauseMs: 40,
    releaseAfterMs: 60_000,
    ...more,
    ask: async ({ key }) => {
      asked.push({ key, atMs: performance.now() });
      return await answering(asked.length);
    },
  };
  const byOperation = new Map([['withdraw', lookup]]);
  const lookups = new Lookups(
    store,
    'gateway',
    byOperation,
    {
      lookedUp: (_, result) => events.push(['lookedUp', result]),
      resolved: (_, { by, reason, to }) => events.push(['resolved', by, reason, to.as]),
      undecided: (_, said, times) => events.push(['undecided', said, times]),
    },
    clock,
  );
  onTestFinished(() => lookups.close());
  return { lookups, asked, events, byOperation };
}

describe('a key in doubt', () => {
  it('is completed with what the backend says, without a retry', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked, events } = open(store, () => executed);
    const { engine } = rig.engine(store, {}, lookups);
    const call = newCall(unknown, { inDoubt: 'lookup' });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    await until(async () => (await store.get(call.scope))?.state === 'completed');
    expect(await engine.handle(retryOf(call))).toEqual(replayFor(call, 'looked up'));
    expect(asked).toHaveLength(1);
    await until(() => events.length === 2);
    expect(events).toEqual([
      ['lookedUp', 'completed'],
      ['resolved', 'lookup', 'GET answered 200', 'completed'],
    ]);
  });

  it('is looked up again after growing pauses, until the backend decides it', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const answers = [failed, undecided, undecided, failed, executed];
    const { lookups, asked, events } = open(store, (time) => answers[time - 1] ?? executed, {
      maxPauseMs: 200,
    });
    const request = await bring(store, 'in_doubt');
    const metMs = performance.now();
    lookups.lookUpLater(request, request.token);
    await until(async () => (await store.get(request.scope))?.state === 'completed');
    const pauses = asked.map(({ atMs }, i) => atMs - (asked[i - 1]?.atMs ?? metMs));
    // Pauses of 10, 20, 40, 80 and 160 ms, with up to a quarter of jitter.
    for (const [i, leastMs] of [9, 15, 30, 60, 120].entries())
      expect(pauses[i]).toBeGreaterThanOrEqual(leastMs - 1);
    // The test may read the new record before the lookup has the store's answer.
    const results = () => events.filter(([event]) => event === 'lookedUp').map(([, result]) => result);
    await until(() => results().length === 5);
    expect(results()).toEqual(['failed', 'unknown', 'unknown', 'failed', 'completed']);
    expect(events).toContainEqual(['undecided', 'GET failed: ECONNRESET', 4]);
  });

  it('that was sent again is never released, because the first request may have been executed', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked } = open(store, () => notExecuted, { releaseAfterMs: 0 });
    const second = duplicateOf(await bring(store, 'in_doubt'));
    expect(await store.restart(second)).toBe('ok');
    expect(await store.markInDoubt(second)).toBe('ok');
    lookups.lookUpLater(second, second.token);
    await until(() => asked.length > 2);
    expect(await store.get(second.scope)).toMatchObject({ state: 'in_doubt', restarted: true });
  });

  it('that the backend does not know is released after releaseAfterMs, and not before', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const [releaseAfterMs, clock] = [60_000, movableClock()];
    const { lookups, asked, events } = open(store, () => notExecuted, { releaseAfterMs }, clock);
    const request = await bring(store, 'in_doubt');
    lookups.lookUpLater(request, request.token);
    clock.pass(releaseAfterMs - 10_000);
    await until(() => asked.length > 3);
    expect(await store.get(request.scope)).toMatchObject({ state: 'in_doubt' });
    clock.pass(10_000);
    await until(async () => (await store.get(request.scope)) === undefined);
    await until(() => events.some(([event]) => event === 'resolved'));
    expect(events.at(-1)).toEqual(['resolved', 'lookup', 'GET answered 404', 'released']);
  });

  it('that is in doubt again under another token counts its age from that moment', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const [releaseAfterMs, clock] = [60_000, movableClock()];
    const { lookups, asked } = open(store, () => notExecuted, { releaseAfterMs }, clock);
    const first = await bring(store, 'in_doubt');
    lookups.lookUpLater(first, first.token);
    clock.pass(releaseAfterMs / 2);
    const heir = duplicateOf(first);
    expect(await store.release(first)).toBe('ok');
    expect(await store.start(heir)).toEqual({ kind: 'started' });
    expect(await store.markInDoubt(heir)).toBe('ok');
    lookups.lookUpLater(heir, heir.token);
    clock.pass(releaseAfterMs - 10_000);
    const { length } = asked;
    await until(() => asked.length > length + 3);
    expect(await store.get(first.scope)).toMatchObject({ state: 'in_doubt' });
    clock.pass(10_000);
    await until(async () => (await store.get(first.scope)) === undefined);
  });

  it('that a late complete has completed is not looked up again', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked } = open(store, () => undecided);
    const request = await bring(store, 'in_doubt');
    lookups.lookUpLater(request, request.token);
    await until(() => asked.length > 0);
    expect(await store.complete(request, paid('late'))).toBe('ok');
    await sleep(100);
    const { length } = asked;
    await sleep(200);
    expect(asked).toHaveLength(length);
    expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid('late'), request));
  });

  it('that is completed during its lookup keeps that completion', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const request = await bring(store, 'in_doubt');
    const { lookups, events } = open(store, async () => {
      expect(await store.complete(request, paid('late'))).toBe('ok');
      return executed;
    });
    lookups.lookUpLater(request, request.token);
    await until(() => events.length > 0);
    expect(events).toEqual([['lookedUp', 'unknown']]);
    expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid('late'), request));
  });

  it('that is completed during an undecided lookup gives the retry that waits for it the result', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const request = await bring(store, 'in_doubt');
    const { lookups } = open(store, async () => {
      expect(await store.complete(request, paid('late'))).toBe('ok');
      return undecided;
    });
    const { engine } = rig.engine(store, {}, lookups);
    const retry = { ...newCall(unknown, { inDoubt: 'lookup', waitMs: 20_000 }), ...duplicateOf(request) };
    expect(await engine.handle(retry)).toMatchObject({ kind: 'replayed', requestId: request.requestId });
  });

  it.each(['an operator', 'the lookup'])(
    'that %s releases first is not released by the other one, who looked at the same execution',
    async (first) => {
      await using rig = new Rig();
      const store = await rig.store();
      const request = await bring(store, 'in_doubt');
      const { scope } = request;
      const desk = new Desk(store, {
        layer: 'gateway',
        leaseMs: 1000,
        maxStoredBytes: 1000,
        clock: systemClock,
      });
      const shown = await desk.answer({ kind: 'show', scope });
      const { record } = (shown as { value: ShownRecord }).value;
      const { promise: answer, resolve: say } = Promise.withResolvers<LookupAnswer>();
      const { lookups, asked, events } = open(store, () => answer, { releaseAfterMs: 0 });
      const operatorReleases = () =>
        desk.answer({
          kind: 'resolve',
          scope,
          as: 'released',
          execution: `${record?.execution}`,
          by: 'ada',
          reason: 'not in the books',
        });
      const lookupEnds = async () => {
        say(notExecuted);
        await until(() => events.length > 0);
      };
      // The retry is paid, and is in doubt again.
      const paidAgain = duplicateOf(request);
      const retry = async () => {
        expect(await store.start(paidAgain)).toEqual({ kind: 'started' });
        await store.markInDoubt(paidAgain);
      };
      lookups.lookUpLater(request, request.token);
      await until(() => asked.length === 1);
      if (first === 'an operator') {
        expect(await operatorReleases()).toMatchObject({ kind: 'found' });
        await retry();
        await lookupEnds();
        expect(events).toEqual([['lookedUp', 'unknown']]);
      } else {
        await lookupEnds();
        await retry();
        expect(await operatorReleases()).toMatchObject({ kind: 'refused', why: 'changed' });
      }
      expect(await store.get(scope)).toMatchObject({ state: 'in_doubt', token: paidAgain.token });
    },
  );

  it('is looked up again until the store accepts the resolution', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { lookups, asked } = open(store, () => executed);
    const request = await bring(store, 'in_doubt');
    store.fail('resolve', 'before', 3);
    lookups.lookUpLater(request, request.token);
    await until(async () => (await store.get(request.scope))?.state === 'completed');
    expect(asked).toHaveLength(4);
  });

  it('is not looked up if its operation has no lookup', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked } = open(store, () => executed);
    const request = await bring(store, 'in_doubt', newRequest({ operation: 'checkout' }));
    lookups.lookUpLater(request, request.token);
    expect(await lookups.lookUpNow(request)).toBe(false);
    await sleep(50);
    expect(asked).toEqual([]);
  });

  it('is looked up in the background with at most three others at once', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const waiting: ((answer: LookupAnswer) => void)[] = [];
    const { lookups, asked } = open(store, () => new Promise((resolve) => waiting.push(resolve)));
    const requests = await Promise.all(Array.from({ length: 12 }, () => bring(store, 'in_doubt')));
    for (const request of requests) lookups.lookUpLater(request, request.token);
    await until(() => asked.length === 4);
    await sleep(100);
    expect(asked).toHaveLength(4);
    await until(async () => {
      for (const answer of waiting.splice(0)) answer(executed);
      const states = await Promise.all(requests.map(({ scope }) => store.get(scope)));
      return states.every((record) => record?.state === 'completed');
    });
    expect(new Set(asked.map(({ key }) => key)).size).toBe(12);
  });
});

describe('a retry of a key in doubt', () => {
  const later = { firstAfterMs: 60_000, maxPauseMs: 60_000 };

  it('is replayed the answer of an immediate lookup, which many retries share', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked } = open(store, () => sleep(50, executed), later);
    const { engine } = rig.engine(store, {}, lookups);
    const call = newCall(unknown, { inDoubt: 'lookup' });
    await engine.handle(call);
    const retries = Array.from({ length: 10 }, () => engine.handle(retryOf(call, { waitMs: 20_000 })));
    expect(await Promise.all(retries)).toEqual(Array(10).fill(replayFor(call, 'looked up')));
    expect(asked).toHaveLength(1);
  });

  it('is executed when the lookup releases the key, and many retries cause one execution', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups } = open(store, () => notExecuted, { ...later, releaseAfterMs: 1 });
    const { engine } = rig.engine(store, {}, lookups);
    const call = newCall(unknown, { inDoubt: 'lookup' });
    await engine.handle(call);
    await sleep(5);
    const retries = Array.from({ length: 10 }, () => retryOf(call, { waitMs: 20_000 }));
    const results = await Promise.all(retries.map((retry) => engine.handle(retry)));
    expect(results.filter(({ kind }) => kind === 'executed')).toHaveLength(1);
    expect(results.filter(({ kind }) => kind === 'replayed')).toHaveLength(9);
    expect(retries.reduce((runs, { counted }) => runs + counted.runs, 0)).toBe(1);
  });

  it.each([
    ['does not decide the key', undecided],
    ['does not know the key, before releaseAfterMs', notExecuted],
    ['does not answer', failed],
  ])('gets `in_doubt` when the backend %s', async (_, answer) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked } = open(store, () => answer, later);
    const { engine } = rig.engine(store, {}, lookups);
    const call = newCall(unknown, { inDoubt: 'lookup' });
    await engine.handle(call);
    const retry = retryOf(call, { waitMs: 20_000 });
    expect(await engine.handle(retry)).toMatchObject({ kind: 'in_doubt' });
    expect(retry.counted.runs).toBe(0);
    expect(asked).toHaveLength(1);
  });

  it('waits for the lookup for at most its waitMs', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { promise, resolve } = Promise.withResolvers<LookupAnswer>();
    const { lookups } = open(store, () => promise, later);
    const { engine } = rig.engine(store, {}, lookups);
    const call = newCall(unknown, { inDoubt: 'lookup' });
    await engine.handle(call);
    expect(await engine.handle(retryOf(call, { waitMs: 100 }))).toMatchObject({ kind: 'in_doubt' });
    const left = new AbortController();
    const leaving = engine.handle(retryOf(call, { waitMs: 60_000, gone: left.signal }));
    left.abort();
    expect(await leaving).toMatchObject({ kind: 'in_doubt' });
    resolve(executed);
    await until(async () => (await store.get(call.scope))?.state === 'completed');
  });
});

describe('a lookup that a reload replaces or removes', () => {
  it('while it runs decides nothing: the next one does', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const running = Promise.withResolvers<LookupAnswer>();
    const { lookups, asked, byOperation } = open(store, () => running.promise, { releaseAfterMs: 0 });
    const request = await bring(store, 'in_doubt');
    lookups.lookUpLater(request, request.token);
    await until(() => asked.length === 1);
    const lookup = byOperation.get('withdraw') as Lookup;
    lookups.replace(new Map([['withdraw', { ...lookup, ask: async () => executed }]]));
    running.resolve(notExecuted);
    await until(async () => (await store.get(request.scope))?.state !== 'in_doubt');
    expect((await store.get(request.scope))?.state).toBe('completed');
  });

  it('leaves its keys in doubt, and they are found again when the operation has a lookup again', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked, byOperation } = open(store, () => undecided);
    const request = await bring(store, 'in_doubt');
    lookups.lookUpLater(request, request.token);
    await until(() => asked.length > 1);
    lookups.replace(new Map());
    expect(await lookups.lookUpNow(retryOf(newCall(unknown)))).toBe(false);
    await until(async () => !(await lookups.lookUpNow(request)));
    const before = asked.length;
    await sleep(100);
    expect(asked).toHaveLength(before);
    expect((await store.get(request.scope))?.state).toBe('in_doubt');
    const lookup = byOperation.get('withdraw') as Lookup;
    lookups.replace(new Map([['withdraw', { ...lookup, ask: async () => executed }]]));
    await lookups.lookUpAbandoned(0);
    await until(async () => (await store.get(request.scope))?.state === 'completed');
  });
});

describe('the search through the store', () => {
  it('finds keys that other gateways left in doubt or executing without a living owner, and no others', async () => {
    await using rig = new Rig();
    const leaseMs = 300;
    const store = await rig.store({ leaseMs });
    const left = await Promise.all([bring(store, 'in_doubt'), bring(store, 'executing')]);
    const completed = await bring(store, 'completed');
    const request = newRequest();
    const ofLayer = { ...request, scope: recordIdOf('middleware', request.merchant, request.key) };
    const foreign = [
      await bring(store, 'in_doubt', newRequest({ operation: 'checkout' })),
      await bring(store, 'in_doubt', ofLayer),
    ];
    const { lookups, asked } = open(store, () => executed);
    await lookups.lookUpAbandoned(leaseMs);
    await until(async () => {
      const records = await Promise.all(left.map(({ scope }) => store.get(scope)));
      return records.every((record) => record?.state === 'completed');
    });
    expect(new Set(asked.map(({ key }) => key))).toEqual(new Set(left.map(({ key }) => key)));
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    for (const { scope } of foreign) expect(await store.get(scope)).toMatchObject({ state: 'in_doubt' });
  });

  it('reads all pages, and continues after the store did not answer', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const left = await Promise.all(Array.from({ length: 250 }, () => bring(store, 'in_doubt')));
    store.fail('list', 'before', 1);
    const { lookups } = open(store, () => executed, { firstAfterMs: 1 });
    await lookups.lookUpAbandoned(0);
    await until(async () => {
      const records = await Promise.all(left.map(({ scope }) => store.get(scope)));
      return records.every((record) => record?.state === 'completed');
    });
  });

  it('ends when the lookups are closed', async () => {
    await using rig = new Rig();
    const { lookups } = open(await rig.store(), () => executed);
    const passing = lookups.lookUpAbandoned(60_000);
    await lookups.close();
    await passing;
  });
});
