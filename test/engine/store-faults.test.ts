import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { Call, Result } from '../../src/idempotency/call.ts';
import type { Store } from '../../src/ledger/ledger.ts';
import type { Exchange } from '../../src/lib/exchange.ts';
import type { Resolution } from '../../src/store/doubts.ts';
import { type Execution, StoreUnavailable } from '../../src/store/types.ts';
import { complete, newCall, Rig, replayFor, responseOf, retryOf } from '../support/engine.ts';
import { LONG } from '../support/open-store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

async function faulty(rig: Rig, options: { leaseMs?: number; completeRetryMs?: number } = {}) {
  const store = await rig.faultyStore();
  return { store, ...rig.engine(store, options) };
}

describe.concurrent('when the store fails before anything was sent', () => {
  it.each(['before', 'after'] as const)(
    'at the start, %s the write, nothing runs, and the key is soon free again',
    async (when) => {
      await using rig = new Rig();
      const { store, engine } = await faulty(rig);
      store.fail('start', when, 1);
      const call = newCall();
      const result = await engine.handle(call);
      expect(result).toEqual({ kind: 'store_unavailable', cause: expect.any(StoreUnavailable) });
      expect(call.counted.runs).toBe(0);
      // The lease is a minute, so only taking the start back can have freed the key this soon.
      await until(async () => (await store.get(call.recordId)) === undefined);
      const retry = retryOf(call);
      expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', decision: 'complete' });
      expect(retry.counted.runs).toBe(1);
      expect(call.counted.runs).toBe(0);
    },
  );

  it('and reports that it wrote nothing, the engine takes nothing back, and reads the record', async () => {
    await using rig = new Rig();
    const { store, engine } = await faulty(rig);
    const [known, fresh] = [newCall(), newCall()];
    await engine.handle(known);
    store.start = async () => {
      throw new StoreUnavailable('the disk is nearly full', { maybeWritten: false });
    };
    expect(await engine.handle(retryOf(known))).toEqual(replayFor(known));
    expect(await engine.handle(fresh)).toMatchObject({ kind: 'store_unavailable' });
    expect([engine.pendingWrites, store.asked.takeBack, fresh.counted.runs]).toEqual([0, 0, 0]);
  });
});

describe.concurrent('when the store fails after the request was sent', () => {
  it.each(['before', 'after'] as const)(
    'for a moment, %s the complete is written, the response waits for the store',
    async (when) => {
      await using rig = new Rig();
      const { store, engine, events } = await faulty(rig, { completeRetryMs: 20_000 });
      store.fail('complete', when, 2);
      const call = newCall();
      expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'complete' });
      expect(await store.get(call.recordId)).toMatchObject({ state: 'completed' });
      expect(await engine.handle(retryOf(call))).toEqual(replayFor(call));
      expect(store.asked.complete).toBe(3);
      expect(events).toEqual([]);
    },
  );

  it('for long, the merchant gets the response, the lease is renewed, and the key is completed when the store is back', async () => {
    await using rig = new Rig();
    const completeRetryMs = 300;
    // The owner renews every 30 ms. In the store its lease lasts for a minute.
    const { store, engine, events } = await faulty(rig, { leaseMs: 90, completeRetryMs });
    store.fail('complete', 'before');
    const call = newCall();
    const startedMs = performance.now();
    expect(await engine.handle(call)).toEqual({
      ...{ kind: 'executed', exchange: complete(), decision: 'complete', stored: false },
    });
    const tookMs = performance.now() - startedMs;
    expect(tookMs).toBeGreaterThanOrEqual(completeRetryMs - 1);
    expect(tookMs).toBeLessThan(completeRetryMs + 1500);
    expect(events).toEqual([['complete_late']]);

    const { renew } = store.asked;
    await until(() => store.asked.renew > renew + 1);
    const elsewhere = rig.engine(await rig.store()).engine;
    const retry = retryOf(call);
    for (const gateway of [engine, elsewhere])
      expect(await gateway.handle(retry)).toEqual({ kind: 'in_flight' });
    store.heal();
    await until(async () => (await engine.handle(retry)).kind === 'replayed');
    expect(await elsewhere.handle(retry)).toEqual(replayFor(call));
    expect(retry.counted.runs).toBe(0);
    expect(events).toEqual([['complete_late']]);
  });

  it('and close runs out of time, the complete is given up', async () => {
    await using rig = new Rig();
    const { store, engine, events } = await faulty(rig, { completeRetryMs: 50 });
    store.fail('complete', 'before');
    const call = newCall();
    await engine.handle(call);
    const startedMs = performance.now();
    await engine.close(200);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    const completes = store.asked.complete;
    store.heal();
    expect(await store.get(call.recordId)).toMatchObject({ state: 'executing' });
    expect(store.asked.complete).toBe(completes);
    expect(events).toEqual([['complete_late'], ['complete_given_up']]);
  });

  it.each(['before', 'after'] as const)(
    '%s the doubt of an abandoned handler is written, its late result is kept as long as one that was in doubt',
    async (when) => {
      await using rig = new Rig();
      const { store, engine } = await faulty(rig);
      store.fail('leaveInDoubt', when);
      const late = Promise.withResolvers<Exchange>();
      const call = newCall({ kind: 'unknown', reason: 'abandoned', timedOut: true, late: late.promise });
      expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
      late.resolve(complete());
      await until(async () => (await store.get(call.recordId))?.state === 'completed');
      expect(await store.expiresInMs(call.recordId)).toBeGreaterThan(LONG.retentionMs);
      expect(await engine.handle(retryOf(call))).toEqual(replayFor(call));
    },
  );
});

const digestOf = (id?: string) => {
  const { status, body } = responseOf(id);
  const bodySha256 = createHash('sha256').update(body).digest('hex').slice(0, 16);
  return { state: 'completed', status, bodyBytes: body.length, bodySha256 };
};

describe.concurrent('when a key in doubt, whose request still runs, meanwhile', () => {
  type Decide = (store: Store, owner: Execution) => Promise<unknown>;
  const resolved =
    (resolution: Resolution): Decide =>
    (store, { recordId, token }) =>
      store.resolve(recordId, token, resolution, { by: 'ada', reason: 'the books show it' });
  const executed = { kind: 'executed', exchange: complete(), decision: 'complete', stored: true } as const;
  const unknown = { kind: 'unknown', reason: 'another execution owns the record', timedOut: false } as const;

  const decisions: [what: string, decide: Decide, result: (call: Call) => Result, stored?: object][] = [
    [
      'was completed by an operator',
      resolved({ as: 'completed', completion: paid('by hand') }),
      (call) => replayFor(call, 'by hand'),
      digestOf('by hand'),
    ],
    [
      'was completed by an operator without its response',
      resolved({ as: 'completed', completion: { kind: 'tombstone', status: 0 } }),
      ({ requestId }) => ({ kind: 'tombstone', requestId }),
      { state: 'completed', status: 0 },
    ],
    [
      'is executed a second time',
      (store, owner) => store.restart(duplicateOf(owner)),
      () => ({ ...executed, exchange: unknown, decision: 'in_doubt', stored: false }),
      { state: 'executing' },
    ],
    // The backend has executed, so the operator was wrong.
    ['was released by an operator', resolved({ as: 'released' }), () => executed],
  ];

  it.each(decisions)('%s, its owner answers what the store holds', async (_, decide, result, stored) => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine, events } = rig.engine(store);
    const call = newCall(async () => {
      const record = await store.get(call.recordId);
      if (!record) throw new Error('there is no record');
      const owner = { ...newRequest(), ...call, token: record.token };
      await store.leaveInDoubt(owner);
      expect(await decide(store, owner)).toBe('ok');
      return complete();
    });
    expect(await engine.handle(call)).toEqual(result(call));
    const late = ['late_answer', { late: digestOf(), stored }];
    const expected = stored ? [['stale', 'complete'], late] : [];
    await until(() => events.length === expected.length);
    expect(events).toEqual(expected);
  });
});
