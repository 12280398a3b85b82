import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { complete, newCall, notSent, openRun, Rig, responseOf, retryOf, unknown } from '../support/engine.ts';
import { until } from '../support/until.ts';

const digest = (id: string) => {
  const { status, body } = responseOf(id);
  const bodySha256 = createHash('sha256').update(body).digest('hex').slice(0, 16);
  return { state: 'settled', status, bodyBytes: body.length, bodySha256 };
};

describe.concurrent('under inDoubt: retry', () => {
  it('a key in doubt is executed once more, and replayed from then on', async () => {
    await using rig = new Rig();
    const { engine, told } = rig.engine(await rig.store());
    const call = newCall(unknown, { inDoubt: 'retry' });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    const again = retryOf(call);
    expect(await engine.handle(again)).toMatchObject({ kind: 'executed', decision: 'settle' });
    expect(again.counted.runs).toBe(1);
    expect(told).toContainEqual(['sendsAgain']);
    const third = retryOf(call);
    expect(await engine.handle(third)).toEqual({ kind: 'replayed', response: responseOf('retry') });
    expect(third.counted.runs).toBe(0);
  });

  it('a key in doubt is not executed again by an operation that holds', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(unknown);
    await engine.handle(call);
    const again = retryOf(call);
    expect(await engine.handle(again)).toMatchObject({ kind: 'in_doubt' });
    expect(again.counted.runs).toBe(0);
  });

  it('two retries at once: one is executed, the other waits for its result', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    const retries = Array.from({ length: 8 }, () => retryOf(call, { waitMs: 20_000 }));
    const results = await Promise.all(retries.map((retry) => engine.handle(retry)));
    expect(results.filter(({ kind }) => kind === 'executed')).toHaveLength(1);
    expect(results.filter(({ kind }) => kind === 'replayed')).toHaveLength(7);
    expect(retries.reduce((runs, { counted }) => runs + counted.runs, 0)).toBe(1);
  });

  it.each([
    ['was not sent', notSent],
    ['was refused', complete('refused', 429)],
  ])('a second request that %s leaves the key in doubt: the first may have been executed', async (_, end) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    const second = newCall(end, { inDoubt: 'retry', key: call.key });
    expect(await engine.handle(second)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    expect(await store.get(call.scope)).toMatchObject({ state: 'in_doubt' });
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'settle' });
  });

  it('a takeover whose answer was lost sends nothing, and the key is in doubt again', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    store.fail('takeOver', 'after', 1);
    const second = retryOf(call);
    expect(await engine.handle(second)).toMatchObject({ kind: 'store_unavailable' });
    expect(second.counted.runs).toBe(0);
    await until(async () => (await store.get(call.scope))?.state === 'in_doubt');
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'settle' });
  });

  it('a late answer of the first request is told beside the one that stands, without their bodies', async () => {
    await using rig = new Rig();
    const leaseMs = 200;
    const slow = await rig.faultyStore({ leaseMs });
    slow.fail('renew', 'before');
    const late = rig.engine(slow, { leaseMs });
    const heir = rig.engine(await rig.store({ leaseMs }), { leaseMs });
    const { run, end } = openRun();
    const call = newCall(run, { inDoubt: 'retry' });
    const first = late.engine.handle(call);
    await until(() => late.engine.executing === 1);
    const second = openRun();
    const again = { ...newCall(second.run, { inDoubt: 'retry', key: call.key }), waitMs: 20_000 };
    const retried = heir.engine.handle(again);
    await until(() => again.counted.runs === 1);
    end(complete('late'));
    expect(await first).toMatchObject({ kind: 'executed' });
    await until(() => late.told.some(([event, write]) => event === 'stale' && write === 'settle'));
    // What is told of is the other answer: it is waited for.
    expect(late.told.map(([event]) => event)).not.toContain('lateAnswer');
    second.end(complete('heir'));
    await retried;
    const lateAnswer = ['lateAnswer', { late: digest('late'), stands: digest('heir') }];
    await until(() => late.told.some(([event]) => event === 'lateAnswer'));
    expect(late.told).toContainEqual(lateAnswer);
    expect(await heir.engine.handle(retryOf(call))).toEqual({
      kind: 'replayed',
      response: responseOf('heir'),
    });
  });
});
