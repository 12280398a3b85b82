import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import type { Exchange } from '../../src/idempotency/outcome.ts';
import { complete, newCall, notSent, Rig, responseOf, retryOf, unknown } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';

const oversize = (status: number): Exchange => ({
  kind: 'oversize',
  status,
  headers: ['Content-Type', 'text/plain'],
  body: Readable.from(['large']),
});

describe.concurrent('a first execution', () => {
  it('runs once, and everybody after it gets its result', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, told } = rig.engine(store);
    const call = newCall();
    expect(await engine.handle(call)).toEqual({ kind: 'executed', exchange: complete(), decision: 'settle' });
    for (let times = 0; times < 3; times++) {
      const retry = retryOf(call);
      expect(await engine.handle(retry)).toEqual({ kind: 'replayed', response: responseOf() });
      expect(retry.counted.runs).toBe(0);
    }
    expect(call.counted.runs).toBe(1);
    expect(told).toEqual([]);
  });

  it('has begun when it runs, and is settled when it is answered', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const states: unknown[] = [];
    const call = newCall(async () => {
      states.push((await store.get(call.scope))?.state);
      expect(engine.executing).toBe(1);
      return complete();
    });
    await engine.handle(call);
    states.push((await store.get(call.scope))?.state);
    expect(states).toEqual(['executing', 'settled']);
    expect(engine.executing).toBe(0);
  });

  it('is recorded with merchant, operation and key', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const call = newCall(complete(), { merchant: 'M-9', operation: 'checkout', key: 'order 7' });
    await rig.engine(store).engine.handle(call);
    expect(await store.get(call.scope)).toMatchObject({
      merchant: 'M-9',
      operation: 'checkout',
      key: 'order 7',
    });
  });

  it('does not stand for another request under its key', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall();
    await engine.handle(call);
    const { fingerprint } = otherOf(newRequest());
    const other = { ...retryOf(call), fingerprint };
    expect(await engine.handle(other)).toEqual({ kind: 'mismatch' });
    expect(other.counted.runs).toBe(0);
  });

  it('stands for its own merchant only', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const mine = newCall(complete('mine'), { merchant: 'M-1', key: 'same' });
    const yours = newCall(complete('yours'), { merchant: 'M-2', key: 'same' });
    await engine.handle(mine);
    await engine.handle(yours);
    expect(await engine.handle(retryOf(mine))).toEqual({ kind: 'replayed', response: responseOf('mine') });
    expect(await engine.handle(retryOf(yours))).toEqual({ kind: 'replayed', response: responseOf('yours') });
  });
});

describe.concurrent('what becomes of the key', () => {
  const settled: [what: string, exchange: Exchange, result: unknown][] = [
    ['an error of the backend', complete('e', 500), { kind: 'replayed', response: responseOf('e', 500) }],
    [
      'a refusal that is not on the list',
      complete('r', 422),
      { kind: 'replayed', response: responseOf('r', 422) },
    ],
    ['a result too large to store', oversize(201), { kind: 'tombstone' }],
  ];

  it.each(settled)('%s is settled', async (_, exchange, result) => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(exchange);
    expect(await engine.handle(call)).toEqual({ kind: 'executed', exchange, decision: 'settle' });
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toEqual(result);
    expect(retry.counted.runs).toBe(0);
  });

  const released: [what: string, exchange: Exchange][] = [
    ['a request that was surely not sent', notSent],
    ['a 401', complete('x', 401)],
    ['a 403', complete('x', 403)],
    ['a 429', complete('x', 429)],
    ['a large 403', oversize(403)],
  ];

  it.each(released)('%s is passed on and released: the next one runs', async (_, exchange) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, told } = rig.engine(store);
    const call = newCall(exchange);
    expect(await engine.handle(call)).toEqual({ kind: 'executed', exchange, decision: 'release' });
    expect(await store.get(call.scope)).toBeUndefined();
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'settle' });
    expect(told).toEqual([]);
  });

  const doubtful: [what: string, run: () => Promise<Exchange>, reason: string][] = [
    ['a request that may have been sent', async () => unknown, 'UND_ERR_SOCKET'],
    ['a timeout', async () => ({ kind: 'unknown', reason: 'timeout', timedOut: true }), 'timeout'],
    ['a run that throws', () => Promise.reject(new RangeError('broken')), 'RangeError'],
  ];

  it.each(doubtful)('%s is in doubt: nobody runs it again', async (_, run, reason) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, told } = rig.engine(store);
    const call = newCall(run);
    const result = await engine.handle(call);
    expect(result).toMatchObject({
      kind: 'executed',
      exchange: { kind: 'unknown', reason },
      decision: 'in_doubt',
    });
    const sinceMs = (await store.get(call.scope))?.changedAtMs;
    for (let times = 0; times < 3; times++) {
      const retry = retryOf(call, { waitMs: 5000 });
      expect(await engine.handle(retry)).toEqual({ kind: 'in_doubt', sinceMs });
      expect(retry.counted.runs).toBe(0);
    }
    expect(told).toEqual([['inDoubt', reason]]);
  });

  it('a run that throws before it is a promise is in doubt too', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(() => {
      throw new RangeError('broken');
    });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'in_doubt' });
  });
});
