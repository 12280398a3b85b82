import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, onTestFinished } from 'vitest';
import { type Lookup, Lookups } from '../../src/doubts/lookups.ts';
import type { Store } from '../../src/ledger/ledger.ts';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import type { LookupAnswer } from '../../src/lib/exchange.ts';
import { bring, replayOf } from '../contract/states.ts';
import { emitTo } from '../support/emit.ts';
import { newCall, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { movableClock } from '../support/movable-clock.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

const executed: LookupAnswer = { kind: 'executed', said: 'GET answered 200', completion: paid('looked up') };
const notExecuted: LookupAnswer = { kind: 'not_executed', said: 'GET answered 404' };
const undecided: LookupAnswer = { kind: 'undecided', said: 'GET answered 500' };
const failed: LookupAnswer = { kind: 'failed', said: 'GET failed: ECONNRESET' };

type Answering = (time: number) => LookupAnswer | Promise<LookupAnswer>;

/** No lookup in the background. */
const later = { firstAfterMs: 60_000, maxPauseMs: 60_000 };

/** Lookups with a backend that gives the test's answers. Records its questions and what was emitted. */
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
    emitTo({
      lookups: ({ result }) => events.push(['lookups', result]),
      resolved: ({ by, reason, to }) => events.push(['resolved', by, reason, to]),
      undecided: ({ said, times }) => events.push(['undecided', said, times]),
    }),
    clock,
  );
  onTestFinished(() => lookups.close());
  /** From now on these answers are used. */
  const reload = (answer: LookupAnswer) =>
    lookups.replace(new Map([['withdraw', { ...lookup, ask: async () => answer }]]));
  return { lookups, asked, events, reload };
}

/** The same with a key in doubt, which this process has left. */
async function doubtful(rig: Rig, answering: Answering, more?: Partial<Lookup>, clock?: Clock) {
  const store = await rig.faultyStore();
  const request = await bring(store, 'in_doubt');
  const opened = open(store, answering, more, clock);
  opened.lookups.lookUpLater(request, request.token);
  const stateOf = async () => (await store.get(request.recordId))?.state;
  return { store, request, stateOf, ...opened };
}

/** The same with an engine that has left it, and its call. */
async function leftInDoubt(rig: Rig, answering: Answering, more: Partial<Lookup> = later) {
  const store = await rig.store();
  const opened = open(store, answering, more);
  const { engine } = rig.engine(store, {}, opened.lookups);
  const call = newCall(unknown, { inDoubt: 'lookup' });
  expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
  return { store, engine, call, ...opened };
}

describe('a key in doubt', () => {
  it('is completed with what the backend says, without a retry', async () => {
    await using rig = new Rig();
    const { store, engine, call, asked, events } = await leftInDoubt(rig, () => executed, {});
    await until(async () => (await store.get(call.recordId))?.state === 'completed');
    expect(await engine.handle(retryOf(call))).toEqual(replayFor(call, 'looked up'));
    expect(asked).toHaveLength(1);
    await until(() => events.length === 2);
    expect(events).toEqual([
      ['lookups', 'completed'],
      ['resolved', 'lookup', 'GET answered 200', 'completed'],
    ]);
  });

  it('is looked up again after growing pauses, until the backend decides it', async () => {
    await using rig = new Rig();
    const answers = [failed, undecided, undecided, failed, executed];
    const metMs = performance.now();
    const { asked, events, stateOf } = await doubtful(rig, (time) => answers[time - 1] ?? executed, {
      maxPauseMs: 200,
    });
    await until(async () => (await stateOf()) === 'completed');
    const pauses = asked.map(({ atMs }, i) => atMs - (asked[i - 1]?.atMs ?? metMs));
    // Pauses of 10, 20, 40, 80 and 160 ms, with up to a quarter of jitter.
    for (const [i, leastMs] of [9, 15, 30, 60, 120].entries())
      expect(pauses[i]).toBeGreaterThanOrEqual(leastMs - 1);
    // The test may read the new record before the lookup has the store's answer.
    const results = () => events.filter(([event]) => event === 'lookups').map(([, result]) => result);
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
    expect(await store.leaveInDoubt(second)).toBe('ok');
    lookups.lookUpLater(second, second.token);
    await until(() => asked.length > 2);
    expect(await store.get(second.recordId)).toMatchObject({ state: 'in_doubt', restarted: true });
  });

  it('that the backend does not know is released after releaseAfterMs, and not before', async () => {
    await using rig = new Rig();
    const [releaseAfterMs, clock] = [60_000, movableClock()];
    const { asked, events, stateOf } = await doubtful(rig, () => notExecuted, { releaseAfterMs }, clock);
    clock.pass(releaseAfterMs - 10_000);
    await until(() => asked.length > 3);
    expect(await stateOf()).toBe('in_doubt');
    clock.pass(10_000);
    await until(async () => (await stateOf()) === undefined);
    await until(() => events.some(([event]) => event === 'resolved'));
    expect(events.at(-1)).toEqual(['resolved', 'lookup', 'GET answered 404', 'released']);
  });

  it('that is in doubt again under another token counts its age from that moment', async () => {
    await using rig = new Rig();
    const [releaseAfterMs, clock] = [60_000, movableClock()];
    const opened = await doubtful(rig, () => notExecuted, { releaseAfterMs }, clock);
    const { store, request, lookups, asked, stateOf } = opened;
    clock.pass(releaseAfterMs / 2);
    const heir = duplicateOf(request);
    expect(await store.release(request)).toBe('ok');
    expect(await store.start(heir)).toEqual({ kind: 'started' });
    expect(await store.leaveInDoubt(heir)).toBe('ok');
    lookups.lookUpLater(heir, heir.token);
    clock.pass(releaseAfterMs - 10_000);
    const { length } = asked;
    await until(() => asked.length > length + 3);
    expect(await stateOf()).toBe('in_doubt');
    clock.pass(10_000);
    await until(async () => (await stateOf()) === undefined);
  });

  it('that was released and is in doubt again is not released by a lookup that began before', async () => {
    await using rig = new Rig();
    const { promise, resolve: say } = Promise.withResolvers<LookupAnswer>();
    const { store, request, asked, events } = await doubtful(rig, () => promise, { releaseAfterMs: 0 });
    await until(() => asked.length === 1);
    const heir = duplicateOf(request);
    expect(await store.release(request)).toBe('ok');
    expect(await store.start(heir)).toEqual({ kind: 'started' });
    expect(await store.leaveInDoubt(heir)).toBe('ok');
    say(notExecuted);
    await until(() => events.length > 0);
    expect(events).toEqual([['lookups', 'unknown']]);
    expect(await store.get(heir.recordId)).toMatchObject({ state: 'in_doubt', token: heir.token });
  });

  it.each([
    ['', 0],
    [', also if no other doubt has a place', 10_000],
  ])('that is in doubt again during its lookup is looked up once more%s', async (_, others) => {
    await using rig = new Rig();
    const { promise, resolve: say } = Promise.withResolvers<LookupAnswer>();
    const answering = (time: number) => (time === 1 ? promise : executed);
    const { store, request, lookups, asked, stateOf } = await doubtful(rig, answering);
    await until(() => asked.length === 1);
    const heir = duplicateOf(request);
    expect(await store.release(request)).toBe('ok');
    expect(await store.start(heir)).toEqual({ kind: 'started' });
    expect(await store.leaveInDoubt(heir)).toBe('ok');
    for (const other of Array.from({ length: others }, () => newRequest()))
      lookups.lookUpLater(other, other.token);
    lookups.lookUpLater(heir, heir.token);
    say(executed);
    await until(async () => (await stateOf()) === 'completed');
    expect(asked).toHaveLength(2);
  });

  it('that a late complete has completed is not looked up again', async () => {
    await using rig = new Rig();
    const { store, request, lookups, asked } = await doubtful(rig, () => undecided, later);
    expect(await lookups.lookUpNow(request)).toBe(false);
    expect(await store.complete(request, paid('late'))).toBe('ok');
    expect(await lookups.lookUpNow(request)).toBe(true);
    expect(asked).toHaveLength(1);
    expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid('late'), request));
  });

  it('that is completed during an undecided lookup is replayed to the retry that waits', async () => {
    await using rig = new Rig();
    const answer = Promise.withResolvers<LookupAnswer>();
    const { store, request, lookups } = await doubtful(rig, () => answer.promise, later);
    const { engine } = rig.engine(store, {}, lookups);
    const retry = { ...newCall(unknown, { inDoubt: 'lookup', waitMs: 20_000 }), ...duplicateOf(request) };
    const retried = engine.handle(retry);
    expect(await store.complete(request, paid('late'))).toBe('ok');
    answer.resolve(undecided);
    expect(await retried).toMatchObject({ kind: 'replayed', requestId: request.requestId });
  });

  it('is looked up again until the store accepts the resolution', async () => {
    await using rig = new Rig();
    const { store, stateOf, asked } = await doubtful(rig, () => executed);
    store.fail('resolve', 'before', 3);
    await until(async () => (await stateOf()) === 'completed');
    expect(asked).toHaveLength(4);
  });

  it('is not looked up if its operation has no lookup', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { lookups, asked } = open(store, () => executed);
    const request = await bring(store, 'in_doubt', newRequest({ operation: 'checkout' }));
    lookups.lookUpLater(request, request.token);
    expect(await lookups.lookUpNow(request)).toBe(false);
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
      const states = await Promise.all(requests.map(({ recordId }) => store.get(recordId)));
      return states.every((record) => record?.state === 'completed');
    });
    expect(new Set(asked.map(({ key }) => key)).size).toBe(12);
  });
});

describe('retries of a key in doubt', () => {
  it.each([
    ['has executed it get what it says', executed, 0],
    ['has not executed it get what one of them gets that is sent', notExecuted, 1],
  ])('share one lookup, and if the backend %s', async (_, answer, runs) => {
    await using rig = new Rig();
    const more = { ...later, releaseAfterMs: 0 };
    const { engine, call, asked } = await leftInDoubt(rig, () => sleep(50, answer), more);
    const retries = Array.from({ length: 10 }, () => retryOf(call, { waitMs: 20_000 }));
    const results = await Promise.all(retries.map((retry) => engine.handle(retry)));
    expect(asked).toHaveLength(1);
    expect(results.filter(({ kind }) => kind === 'executed')).toHaveLength(runs);
    expect(results.filter(({ kind }) => kind === 'replayed')).toHaveLength(10 - runs);
    expect(retries.reduce((sum, { counted }) => sum + counted.runs, 0)).toBe(runs);
    if (runs === 0) expect(results[0]).toEqual(replayFor(call, 'looked up'));
  });

  it.each([
    ['does not decide the key', undecided],
    ['does not know the key, before releaseAfterMs', notExecuted],
    ['does not answer', failed],
  ])('get `in_doubt` when the backend %s', async (_, answer) => {
    await using rig = new Rig();
    const { engine, call, asked } = await leftInDoubt(rig, () => answer);
    const retry = retryOf(call, { waitMs: 20_000 });
    expect(await engine.handle(retry)).toMatchObject({ kind: 'in_doubt' });
    expect(retry.counted.runs).toBe(0);
    expect(asked).toHaveLength(1);
  });

  it('wait for the lookup for at most their waitMs', async () => {
    await using rig = new Rig();
    const { promise, resolve } = Promise.withResolvers<LookupAnswer>();
    const { store, engine, call } = await leftInDoubt(rig, () => promise);
    expect(await engine.handle(retryOf(call, { waitMs: 100 }))).toMatchObject({ kind: 'in_doubt' });
    const left = new AbortController();
    const leaving = engine.handle(retryOf(call, { waitMs: 60_000, gone: left.signal }));
    left.abort();
    expect(await leaving).toMatchObject({ kind: 'in_doubt' });
    resolve(executed);
    await until(async () => (await store.get(call.recordId))?.state === 'completed');
  });
});

describe('a lookup that a reload replaces or removes', () => {
  it('decides nothing if it is running then, but the next one does', async () => {
    await using rig = new Rig();
    const running = Promise.withResolvers<LookupAnswer>();
    const { asked, reload, stateOf } = await doubtful(rig, () => running.promise, { releaseAfterMs: 0 });
    await until(() => asked.length === 1);
    reload(executed);
    running.resolve(notExecuted);
    await until(async () => (await stateOf()) !== 'in_doubt');
    expect(await stateOf()).toBe('completed');
  });

  it('leaves its keys in doubt, and they are found again when the operation has a lookup again', async () => {
    await using rig = new Rig();
    const { request, lookups, asked, reload, stateOf } = await doubtful(rig, () => undecided);
    await until(() => asked.length > 1);
    lookups.replace(new Map());
    expect(await lookups.lookUpNow(retryOf(newCall(unknown)))).toBe(false);
    await until(async () => !(await lookups.lookUpNow(request)));
    const before = asked.length;
    await sleep(100);
    expect(asked).toHaveLength(before);
    expect(await stateOf()).toBe('in_doubt');
    reload(executed);
    await lookups.lookUpAbandoned(0);
    await until(async () => (await stateOf()) === 'completed');
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
    const ofLayer = { ...request, recordId: recordIdOf('middleware', request.merchant, request.key) };
    const foreign = [
      await bring(store, 'in_doubt', newRequest({ operation: 'checkout' })),
      await bring(store, 'in_doubt', ofLayer),
    ];
    const { lookups, asked } = open(store, () => executed);
    await lookups.lookUpAbandoned(leaseMs);
    await until(async () => {
      const records = await Promise.all(left.map(({ recordId }) => store.get(recordId)));
      return records.every((record) => record?.state === 'completed');
    });
    expect(new Set(asked.map(({ key }) => key))).toEqual(new Set(left.map(({ key }) => key)));
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    for (const { recordId } of foreign)
      expect(await store.get(recordId)).toMatchObject({ state: 'in_doubt' });
  });

  it('reads all pages, and continues after the store did not answer', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const left = await Promise.all(Array.from({ length: 250 }, () => bring(store, 'in_doubt')));
    store.fail('list', 'before', 1);
    const { lookups } = open(store, () => executed, { firstAfterMs: 1 });
    await lookups.lookUpAbandoned(0);
    await until(async () => {
      const records = await Promise.all(left.map(({ recordId }) => store.get(recordId)));
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
