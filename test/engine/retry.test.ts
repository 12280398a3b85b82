import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import {
  complete,
  newCall,
  notSent,
  openRun,
  Rig,
  replayFor,
  responseOf,
  retryOf,
  unknown,
} from '../support/engine.ts';
import { newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';

const digest = (id: string) => {
  const { status, body } = responseOf(id);
  const bodySha256 = createHash('sha256').update(body).digest('hex').slice(0, 16);
  return { state: 'completed', status, bodyBytes: body.length, bodySha256 };
};

describe.concurrent('under inDoubt: retry', () => {
  it('a key in doubt is executed once more, and replayed from then on', async () => {
    await using rig = new Rig();
    const { engine, events } = rig.engine(await rig.store());
    const call = newCall(unknown, { inDoubt: 'retry' });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    const again = retryOf(call);
    expect(await engine.handle(again)).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(again.counted.runs).toBe(1);
    expect(events).toContainEqual(['sendsAgain']);
    const third = retryOf(call);
    expect(await engine.handle(third)).toEqual(replayFor(call, 'retry'));
    expect(third.counted.runs).toBe(0);
  });

  it('the key of an owner that died is executed once more', async () => {
    await using rig = new Rig();
    const store = await rig.store({ leaseMs: 150 });
    const { engine, events } = rig.engine(store, { leaseMs: 150 });
    const call = newCall(undefined, { inDoubt: 'retry', waitMs: 20_000 });
    await store.start({ ...newRequest(), ...call });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(call.counted.runs).toBe(1);
    expect(events).toContainEqual(['sendsAgain']);
  });

  it('a key in doubt is not executed again by an operation with inDoubt: hold', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(unknown);
    await engine.handle(call);
    const again = retryOf(call);
    expect(await engine.handle(again)).toMatchObject({ kind: 'in_doubt' });
    expect(again.counted.runs).toBe(0);
  });

  it.each(['retry', 'lookup'] as const)(
    'a key in doubt of another operation is held, although this operation has inDoubt: %s',
    async (inDoubt) => {
      await using rig = new Rig();
      let lookups = 0;
      const solver = { lookUpLater() {}, lookUpNow: async () => Boolean(lookups++) };
      const { engine, events } = rig.engine(await rig.store(), {}, solver);
      const call = newCall(unknown, { operation: 'withdraw' });
      await engine.handle(call);
      const other = retryOf(call, { operation: 'other', inDoubt });
      expect(await engine.handle(other)).toMatchObject({ kind: 'in_doubt' });
      expect([other.counted.runs, lookups]).toEqual([0, 0]);
      expect(events).not.toContainEqual(['sendsAgain']);
      // A retry with the operation of the record applies its policy.
      const own = retryOf(call, { inDoubt });
      await engine.handle(own);
      expect([own.counted.runs, lookups]).toEqual(inDoubt === 'retry' ? [1, 0] : [0, 1]);
    },
  );

  it('of eight retries at once one is executed, and the others get its result', async () => {
    await using rig = new Rig();
    const [here, there] = [rig.engine(await rig.store()).engine, rig.engine(await rig.store()).engine];
    const call = newCall(unknown, { inDoubt: 'retry' });
    await here.handle(call);
    const retries = Array.from({ length: 8 }, () => retryOf(call, { waitMs: 20_000 }));
    const results = await Promise.all(retries.map((retry, i) => (i % 2 ? here : there).handle(retry)));
    expect(results.filter(({ kind }) => kind === 'executed')).toHaveLength(1);
    expect(results.filter(({ kind }) => kind === 'replayed')).toHaveLength(7);
    expect(retries.reduce((runs, { counted }) => runs + counted.runs, 0)).toBe(1);
  });

  it.each([
    ['was not sent', notSent],
    ['was refused', complete('refused', 429)],
    ['is told that the first one still runs', complete('runs', 409)],
    ['is told that the first one still runs, too early to say more', complete('runs', 425)],
  ])('a second request that %s leaves the key in doubt: the first may have been executed', async (_, end) => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    const second = newCall(end, { inDoubt: 'retry', key: call.key });
    expect(await engine.handle(second)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    expect(await store.get(call.scope)).toMatchObject({ state: 'in_doubt' });
    expect(store.asked.release).toBe(0);
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'complete' });
  });

  it('a restart that is pending when the engine closes releases nothing', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    const goOn = store.hold('restart');
    const second = retryOf(call);
    const result = engine.handle(second);
    await until(() => store.asked.restart === 1);
    const closing = engine.close(20_000);
    goOn();
    await closing;
    expect([(await result).kind, second.counted.runs, store.asked.release]).toEqual(['closing', 0, 0]);
    expect(await store.get(call.scope)).toMatchObject({ state: 'in_doubt' });
  });

  it('a late result of the first request is reported with the stored one, without their bodies', async () => {
    await using rig = new Rig();
    const leaseMs = 200;
    const slow = await rig.faultyStore({ leaseMs });
    slow.fail('renew', 'before');
    const late = rig.engine(slow, { leaseMs });
    const next = rig.engine(await rig.store({ leaseMs }), { leaseMs });
    const { run, end } = openRun();
    const call = newCall(run, { inDoubt: 'retry' });
    const first = late.engine.handle(call);
    await until(() => late.engine.executing === 1);
    const again = { ...retryOf(call, { waitMs: 20_000 }), run: async () => complete('next') };
    expect(await next.engine.handle(again)).toMatchObject({ kind: 'executed', stored: true });
    end(complete('late'));
    // The merchant of the first request gets the one result that every retry gets.
    expect(await first).toEqual(replayFor(call, 'next'));
    const lateAnswer = ['lateAnswer', { late: digest('late'), stored: digest('next') }];
    await until(() => late.events.some(([event]) => event === 'lateAnswer'));
    expect(late.events).toContainEqual(['stale', 'complete']);
    expect(late.events).toContainEqual(lateAnswer);
    expect(await next.engine.handle(retryOf(call))).toEqual(replayFor(call, 'next'));
  });

  it('a late result of the first request is answered as unknown while the second one runs', async () => {
    await using rig = new Rig();
    const leaseMs = 200;
    const slow = await rig.faultyStore({ leaseMs });
    slow.fail('renew', 'before');
    const late = rig.engine(slow, { leaseMs });
    const next = rig.engine(await rig.store({ leaseMs }), { leaseMs });
    const [first, second] = [openRun(), openRun()];
    const call = newCall(first.run, { inDoubt: 'retry' });
    const slowResult = late.engine.handle(call);
    await until(() => late.engine.executing === 1);
    const again = newCall(second.run, { inDoubt: 'retry', key: call.key, waitMs: 20_000 });
    const nextResult = next.engine.handle(again);
    await until(() => again.counted.runs === 1);
    first.end(complete('late'));
    expect(await slowResult).toMatchObject({
      kind: 'executed',
      exchange: { kind: 'unknown' },
      decision: 'in_doubt',
      stored: false,
    });
    second.end(complete('next'));
    expect(await nextResult).toMatchObject({ kind: 'executed', stored: true });
  });
});
