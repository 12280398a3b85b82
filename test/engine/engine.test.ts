import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import type { Call, Result } from '../../src/idempotency/call.ts';
import type { Exchange } from '../../src/lib/exchange.ts';
import { complete, newCall, notSent, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

const oversize = (status: number): Exchange => ({
  kind: 'oversize',
  status,
  headers: ['Content-Type', 'text/plain'],
  body: Readable.from(['large']),
});

/** The answer of another gateway behind this one. */
function problemBehind(code: string, status: number): Exchange {
  const body = Buffer.from(JSON.stringify({ type: `urn:oncegate:problem:${code}` }));
  const headers = ['Content-Type', 'application/problem+json'];
  return { kind: 'complete', response: { status, headers, body } };
}

const executed = (exchange: Exchange, decision: string, stored = decision === 'complete') => ({
  ...{ kind: 'executed', exchange, decision, stored },
});

describe.concurrent('a first execution', () => {
  it('runs once, and every retry gets its result', async () => {
    await using rig = new Rig();
    const { engine, events } = rig.engine(await rig.store());
    const call = newCall();
    expect(await engine.handle(call)).toEqual(executed(complete(), 'complete'));
    for (let times = 0; times < 3; times++) {
      const retry = retryOf(call);
      expect(await engine.handle(retry)).toEqual(replayFor(call));
      expect(retry.counted.runs).toBe(0);
    }
    expect(call.counted.runs).toBe(1);
    expect(events).toEqual([]);
  });

  it('costs the store one start and one complete, and a retry one start', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    const call = newCall();
    await engine.handle(call);
    expect(store.asked).toMatchObject({ start: 1, complete: 1, peek: 0, renew: 0, release: 0 });
    await engine.handle(retryOf(call));
    expect(store.asked).toMatchObject({ start: 2, complete: 1, peek: 0, renew: 0, release: 0 });
  });

  it('is recorded as executing when it runs, and as completed when it is answered', async () => {
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
    expect(states).toEqual(['executing', 'completed']);
    expect(engine.executing).toBe(0);
  });

  it('is recorded with merchant, operation, key and request id', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const parts = { merchant: 'M-9', operation: 'checkout', key: 'order 7', requestId: 'r-7' };
    const call = newCall(complete(), parts);
    await rig.engine(store).engine.handle(call);
    expect(await store.get(call.scope)).toMatchObject(parts);
  });

  it('is not replayed to a different request with the same key', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall();
    await engine.handle(call);
    const { fingerprint } = otherOf(newRequest());
    const other = { ...retryOf(call), fingerprint };
    expect(await engine.handle(other)).toEqual({ kind: 'mismatch' });
    expect(other.counted.runs).toBe(0);
  });

  it('is replayed to its own merchant only', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const mine = newCall(complete('mine'), { merchant: 'M-1', key: 'same' });
    const yours = newCall(complete('yours'), { merchant: 'M-2', key: 'same' });
    await engine.handle(mine);
    await engine.handle(yours);
    expect(await engine.handle(retryOf(mine))).toEqual(replayFor(mine, 'mine'));
    expect(await engine.handle(retryOf(yours))).toEqual(replayFor(yours, 'yours'));
  });
});

describe.concurrent('what becomes of the key', () => {
  const tombstoneOf = ({ requestId }: Call): Result => ({ kind: 'tombstone', requestId });
  const completed: [what: string, exchange: Exchange, result: (first: Call) => Result][] = [
    ['an error of the backend', complete('e', 500), (first) => replayFor(first, 'e', 500)],
    ['a refusal that is not on the list', complete('r', 403), (first) => replayFor(first, 'r', 403)],
    ['a result too large to store', oversize(201), tombstoneOf],
  ];

  it.each(completed)('%s is completed', async (_, exchange, result) => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(exchange);
    expect(await engine.handle(call)).toEqual(executed(exchange, 'complete'));
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toEqual(result(call));
    expect(retry.counted.runs).toBe(0);
  });

  const released: [what: string, exchange: Exchange][] = [
    ['a request that was surely not sent', notSent],
    ['a 401', complete('x', 401)],
    ['a 429', complete('x', 429)],
    ['a large 429', oversize(429)],
    ['a 503 of another gateway that sent nothing', problemBehind('store_unavailable', 503)],
    ['a 409 of another gateway that refuses a key', problemBehind('idempotency_key_invalid', 409)],
  ];

  it.each(released)('%s is passed on and released: the next one runs', async (_, exchange) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, events } = rig.engine(store);
    const call = newCall(exchange);
    expect(await engine.handle(call)).toEqual(executed(exchange, 'release'));
    expect(await store.get(call.scope)).toBeUndefined();
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(events).toEqual([]);
  });

  const gaveUpWaiting: [what: string, exchange: Exchange, status: number][] = [
    ['a 502', complete('x', 502), 502],
    ['a 503', complete('x', 503), 503],
    ['a 409 of another gateway whose first request runs', problemBehind('request_in_flight', 409), 409],
    ['a 429 of another gateway that does not know the outcome', problemBehind('outcome_unknown', 429), 429],
    ['an answer of a later gateway that this one does not know', problemBehind('new_in_2030', 422), 422],
    ['a 504', complete('x', 504), 504],
    ['a large 504', oversize(504), 504],
  ];

  it.each(gaveUpWaiting)('%s is passed on, and the key is in doubt', async (_, exchange, status) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, events } = rig.engine(store);
    const call = newCall(exchange);
    expect(await engine.handle(call)).toEqual(executed(exchange, 'in_doubt'));
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toMatchObject({ kind: 'in_doubt' });
    expect(retry.counted.runs).toBe(0);
    expect(events).toEqual([['inDoubt', { cause: 'status', reason: `status ${status}` }]]);
  });

  const timeout: Exchange = { kind: 'unknown', reason: 'timeout', timedOut: true };
  const doubtful: [what: string, run: () => Promise<Exchange>, cause: string, reason: string][] = [
    ['a request that may have been sent', async () => unknown, 'connection', 'UND_ERR_SOCKET'],
    ['a timeout', async () => timeout, 'timeout', 'timeout'],
    ['a run that throws', () => Promise.reject(new RangeError('broken')), 'connection', 'RangeError'],
  ];

  it.each(doubtful)('%s leaves the key in doubt: no retry runs', async (_, run, cause, reason) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, events } = rig.engine(store);
    const call = newCall(run);
    const result = await engine.handle(call);
    expect(result).toMatchObject(executed({ kind: 'unknown', reason } as Exchange, 'in_doubt'));
    const sinceMs = (await store.get(call.scope))?.changedAtMs;
    for (let times = 0; times < 3; times++) {
      const retry = retryOf(call, { waitMs: 5000 });
      expect(await engine.handle(retry)).toEqual({ kind: 'in_doubt', sinceMs, requestId: call.requestId });
      expect(retry.counted.runs).toBe(0);
    }
    expect(events).toEqual([['inDoubt', { cause, reason }]]);
  });

  it('a late end that surely executed nothing frees a key in doubt', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const { promise: late, resolve: endLate } = Promise.withResolvers<Exchange>();
    const call = newCall({ kind: 'unknown', reason: 'it takes too long', timedOut: true, late });
    expect(await engine.handle(call)).toMatchObject({ decision: 'in_doubt' });
    endLate(complete('nothing was done', 429));
    await until(async () => (await store.get(call.scope)) === undefined);
    expect(await engine.handle(retryOf(call))).toMatchObject({ decision: 'complete' });
  });

  it('a run that throws before it returns a promise leaves the key in doubt too', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const call = newCall(() => {
      throw new RangeError('broken');
    });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'in_doubt' });
  });
});
