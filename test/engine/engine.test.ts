import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import type { Result } from '../../src/idempotency/call.ts';
import type { Exchange } from '../../src/lib/exchange.ts';
import { complete, newCall, notSent, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
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
  it('costs the store one start and one complete, and a retry one start', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, events } = rig.engine(store);
    const call = newCall();
    expect(await engine.handle(call)).toEqual(executed(complete(), 'complete'));
    expect(store.asked).toMatchObject({ start: 1, complete: 1, peek: 0, renew: 0, release: 0 });
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toEqual(replayFor(call));
    expect(store.asked).toMatchObject({ start: 2, complete: 1, peek: 0, renew: 0, release: 0 });
    expect([call.counted.runs, retry.counted.runs]).toEqual([1, 0]);
    expect(events).toEqual([]);
  });

  it('is recorded as executing when it runs, and as completed when it is answered', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const parts = { merchant: 'M-9', operation: 'checkout', key: 'order 7', requestId: 'r-7' };
    const call = newCall(async () => {
      expect(await store.get(call.recordId)).toMatchObject({ ...parts, state: 'executing' });
      expect(engine.executing).toBe(1);
      return complete();
    }, parts);
    expect(await engine.handle(call)).toEqual(executed(complete(), 'complete'));
    expect(await store.get(call.recordId)).toMatchObject({ ...parts, state: 'completed' });
    expect(engine.executing).toBe(0);
  });
});

describe.concurrent('what becomes of the key after', () => {
  const decisions = { completed: 'complete', free: 'release', 'in doubt': 'in_doubt' } as const;
  const timeout: Exchange = { kind: 'unknown', reason: 'timeout', timedOut: true };

  const ends: [what: string, becomes: keyof typeof decisions, exchange: Exchange, event?: object][] = [
    ['an error of the backend', 'completed', complete('e', 500)],
    ['a refusal that is not on the list', 'completed', complete('r', 403)],
    ['a result too large to store', 'completed', oversize(201)],
    ['a request that was surely not sent', 'free', notSent],
    ['a 401', 'free', complete('x', 401)],
    ['a 429', 'free', complete('x', 429)],
    ['a large 429', 'free', oversize(429)],
    ['a 503 of another gateway that sent nothing', 'free', problemBehind('store_unavailable', 503)],
    ['a 409 of another gateway that refuses a key', 'free', problemBehind('idempotency_key_invalid', 409)],
    ['a 502', 'in doubt', complete('x', 502), { cause: 'status', reason: 'status 502' }],
    ['a 503', 'in doubt', complete('x', 503), { cause: 'status', reason: 'status 503' }],
    ['a 504', 'in doubt', complete('x', 504), { cause: 'status', reason: 'status 504' }],
    ['a large 504', 'in doubt', oversize(504), { cause: 'status', reason: 'status 504' }],
    [
      'a 409 of another gateway whose first request runs',
      'in doubt',
      problemBehind('request_in_flight', 409),
      { cause: 'status', reason: 'status 409' },
    ],
    [
      'a 429 of another gateway that does not know the outcome',
      'in doubt',
      problemBehind('outcome_unknown', 429),
      { cause: 'status', reason: 'status 429' },
    ],
    [
      'an answer of a later gateway that this one does not know',
      'in doubt',
      problemBehind('new_in_2030', 422),
      { cause: 'status', reason: 'status 422' },
    ],
    [
      'a request that may have been sent',
      'in doubt',
      unknown,
      { cause: 'connection', reason: 'UND_ERR_SOCKET' },
    ],
    ['a timeout', 'in doubt', timeout, { cause: 'timeout', reason: 'timeout' }],
  ];

  it.each(ends)('%s: it is %s', async (_, becomes, exchange, event) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, events } = rig.engine(store);
    const call = newCall(exchange);
    expect(await engine.handle(call)).toEqual(executed(exchange, decisions[becomes]));
    const { requestId, recordId } = call;
    const record = await store.get(recordId);
    const result: Result =
      exchange.kind === 'complete'
        ? { kind: 'replayed', response: exchange.response, requestId }
        : { kind: 'tombstone', requestId };
    const answers = {
      completed: result,
      free: executed(complete('retry'), 'complete'),
      'in doubt': { kind: 'in_doubt', sinceMs: record?.changedAtMs, requestId },
    };
    const retry = retryOf(call, { waitMs: 5000 });
    expect(await engine.handle(retry)).toEqual(answers[becomes]);
    expect(retry.counted.runs).toBe(becomes === 'free' ? 1 : 0);
    expect(record === undefined).toBe(becomes === 'free');
    expect(events).toEqual(event ? [['in_doubt', event]] : []);
  });

  it.each([
    ['throws', () => Promise.reject(new RangeError('broken'))],
    [
      'throws before it returns a promise',
      () => {
        throw new RangeError('broken');
      },
    ],
  ])('a run that %s: it is in doubt', async (_, run) => {
    await using rig = new Rig();
    const { engine, events } = rig.engine(await rig.store());
    const call = newCall(run);
    const exchange = expect.objectContaining({ kind: 'unknown', reason: 'RangeError' });
    expect(await engine.handle(call)).toEqual(executed(exchange, 'in_doubt'));
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toMatchObject({ kind: 'in_doubt' });
    expect(retry.counted.runs).toBe(0);
    expect(events).toEqual([['in_doubt', { cause: 'connection', reason: 'RangeError' }]]);
  });

  it('a late end that surely executed nothing frees a key in doubt', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const { promise: late, resolve: endLate } = Promise.withResolvers<Exchange>();
    const call = newCall({ kind: 'unknown', reason: 'it takes too long', timedOut: true, late });
    expect(await engine.handle(call)).toMatchObject({ decision: 'in_doubt' });
    endLate(complete('nothing was done', 429));
    await until(async () => (await store.get(call.recordId)) === undefined);
    expect(await engine.handle(retryOf(call))).toMatchObject({ decision: 'complete' });
  });
});
