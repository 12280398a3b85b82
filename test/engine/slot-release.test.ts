import { once } from 'node:events';
import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import type { Exchange } from '../../src/lib/exchange.ts';
import { complete, newCall, notSent, openRun, Rig, retryOf, unknown } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

describe.concurrent('the slot of a request', () => {
  it('is back before the result is completed', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store);
    store.delay('complete', 300);
    const { run, end } = openRun();
    const result = engine.handle(newCall(run));
    await until(() => engine.executing === 1);
    expect(slots.inUse).toBe(1);
    end();
    await until(() => store.asked.complete === 1);
    expect(slots.inUse).toBe(0);
    expect(await result).toMatchObject({ stored: true });
  });

  it('is back after every answer of the store except started', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store);
    const [completed, doubtful, tombstone] = [
      newCall(),
      newCall(unknown),
      newCall({ kind: 'oversize', status: 201, headers: [], body: new Readable({ read() {} }) }),
    ];
    for (const call of [completed, doubtful, tombstone]) {
      const result = await engine.handle(call);
      if (result.kind === 'executed' && result.exchange.kind === 'oversize') result.exchange.body.destroy();
    }
    const { run, end } = openRun();
    const running = newCall(run);
    const elsewhere = rig.engine(await rig.store()).engine;
    const first = elsewhere.handle(running);
    await until(() => elsewhere.executing === 1);
    await until(() => slots.inUse === 0);
    const kinds: string[] = [];
    for (const call of [completed, doubtful, tombstone, running]) {
      kinds.push((await engine.handle(retryOf(call))).kind);
      expect(slots.inUse).toBe(0);
    }
    const { fingerprint } = otherOf(newRequest());
    kinds.push((await engine.handle({ ...retryOf(completed), fingerprint })).kind);
    expect(slots.inUse).toBe(0);
    expect(kinds).toEqual(['replayed', 'in_doubt', 'tombstone', 'in_flight', 'mismatch']);
    for (const when of ['before', 'after'] as const) {
      store.fail('start', when, 1);
      expect(await engine.handle(newCall())).toMatchObject({ kind: 'store_unavailable' });
      expect(slots.inUse).toBe(0);
    }
    end();
    await first;
  });

  it.each<[string, Exchange]>([
    ['a response', complete()],
    ['a request that was not sent', notSent],
    ['an unknown outcome', unknown],
  ])('is back after %s', async (_, exchange) => {
    await using rig = new Rig();
    const { engine, slots } = rig.engine(await rig.store());
    await engine.handle(newCall(exchange));
    expect(slots.inUse).toBe(0);
  });

  it('is back when a run throws', async () => {
    await using rig = new Rig();
    const { engine, slots } = rig.engine(await rig.store());
    await engine.handle(newCall(() => Promise.reject(new RangeError('broken'))));
    expect(slots.inUse).toBe(0);
  });

  it.each(['a restart that was lost', 'a restart that changed nothing'])('is back after %s', async (what) => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store);
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    const retried = retryOf(call);
    if (what.endsWith('lost')) {
      store.fail('restart', 'after', 1);
      expect(await engine.handle(retried)).toMatchObject({ kind: 'store_unavailable' });
    } else {
      const { restart } = store;
      store.restart = async (execution) => {
        const token = (await store.get(call.scope))?.token as typeof execution.token;
        await store.complete({ ...execution, token }, { kind: 'tombstone', status: 0 });
        return await restart(execution);
      };
      expect(await engine.handle(retried)).toEqual({ kind: 'tombstone', requestId: call.requestId });
    }
    expect([slots.inUse, retried.counted.runs]).toEqual([0, 0]);
  });

  it.each(['has been read', 'is destroyed'])(
    'of an oversize response is back when its stream %s',
    async (how) => {
      await using rig = new Rig();
      const store = await rig.store();
      const { engine, slots } = rig.engine(store);
      const body = new Readable({ read() {} });
      body.push('large');
      const call = newCall({ kind: 'oversize', status: 201, headers: [], body });
      expect(await engine.handle(call)).toMatchObject({ kind: 'executed', stored: true });
      expect(await store.get(call.scope)).toMatchObject({ state: 'completed' });
      expect(slots.inUse).toBe(1);
      const closed = once(body, 'close');
      if (how === 'is destroyed') body.destroy();
      else {
        body.resume();
        body.push(null);
      }
      await closed;
      expect(slots.inUse).toBe(0);
    },
  );

  it('of an oversize response is back if its stream broke before the engine saw it', async () => {
    await using rig = new Rig();
    const { engine, slots } = rig.engine(await rig.store());
    const call = newCall(async () => {
      const body = new Readable({ read() {} });
      body.destroy();
      await once(body, 'close');
      return { kind: 'oversize', status: 201, headers: [], body };
    });
    await engine.handle(call);
    expect(slots.inUse).toBe(0);
  });
});
