import { describe, expect, it } from 'vitest';
import { complete, newCall, notSent, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { until } from '../support/until.ts';

describe.concurrent('under inDoubt: retry', () => {
  it('a key in doubt is executed once more, and replayed from then on', async () => {
    await using rig = new Rig();
    const { engine, events } = rig.engine(await rig.store());
    const call = newCall(unknown, { inDoubt: 'retry' });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    const again = retryOf(call);
    expect(await engine.handle(again)).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(again.counted.runs).toBe(1);
    expect(events).toContainEqual(['sent_again']);
    const third = retryOf(call);
    expect(await engine.handle(third)).toEqual(replayFor(call, 'retry'));
    expect(third.counted.runs).toBe(0);
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
      expect(events).not.toContainEqual(['sent_again']);
      // A retry with the operation of the record applies its policy.
      const own = retryOf(call, { inDoubt });
      await engine.handle(own);
      expect([own.counted.runs, lookups]).toEqual(inDoubt === 'retry' ? [1, 0] : [0, 1]);
    },
  );

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
    expect(await store.get(call.recordId)).toMatchObject({ state: 'in_doubt' });
    expect(store.asked.release).toBe(0);
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'complete' });
  });

  it('a second request that was refused leaves the key in doubt, also if its status is not in release', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    for (const status of [401, 429]) {
      const refused = newCall(complete('refused', status), { inDoubt: 'retry', key: call.key });
      const second = { ...refused, statuses: { release: [503], unknown: [] } };
      expect(await engine.handle(second)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    }
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'complete' });
  });

  it('a second request to which another gateway says that the first was executed completes the key, whatever the status', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    const headers = ['Content-Type', 'application/problem+json'];
    const body = Buffer.from('{"type":"urn:oncegate:problem:response_not_stored"}');
    const notStored = { kind: 'complete', response: { status: 409, headers, body } } as const;
    const second = newCall(notStored, { inDoubt: 'retry', key: call.key });
    expect(await engine.handle(second)).toMatchObject({ kind: 'executed', decision: 'complete' });
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
    expect(await store.get(call.recordId)).toMatchObject({ state: 'in_doubt' });
  });
});
