import { setImmediate as immediate } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import { systemClock } from '../../src/lib/clock.ts';
import type { ExistingAnswer } from '../../src/store/contract.ts';
import { LONG } from '../support/open-store.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf, type Stage, stages } from './states.ts';

const { timeoutMs: _, ...lifetimes } = LONG;

export function starts(backend: Backend): void {
  describe('a start', () => {
    it('creates the record of an absent scope, and a peek does not', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const request = newRequest();
      expect(await store.peek(request)).toEqual({ kind: 'absent' });
      expect(await store.get(request.scope)).toBeUndefined();
      expect(await store.start(request)).toEqual({ kind: 'started' });
      expect(await other.get(request.scope)).toMatchObject({ state: 'executing', token: request.token });
    });

    it('that was answered while its process was paused is in time', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ timeoutMs: 500 });
      const starting = store.start(newRequest());
      // It is sent meanwhile.
      for (let turn = 0; turn < 5; turn++) await immediate();
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000);
      expect(await starting).toEqual({ kind: 'started' });
    });

    it.each<[Stage, ExistingAnswer['kind']]>([
      ['executing', 'in_flight'],
      ['in_doubt', 'in_doubt'],
      ['completed', 'completed'],
    ])('of a scope that is %s answers %s on every node, as a peek does', async (stage, kind) => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, stage);
      const before = await store.get(owner.scope);
      const answers = [
        await store.peek(duplicateOf(owner)),
        await other.peek(duplicateOf(owner)),
        await store.start(duplicateOf(owner)),
        await other.start(duplicateOf(owner)),
      ];
      expect(answers[0]).toMatchObject({ kind });
      expect(answers).toEqual(Array(4).fill(answers[0]));
      expect(await other.get(owner.scope)).toEqual(before);
    });

    it('of a tombstone answers tombstone, as a peek does', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'executing');
      expect(await store.complete(owner, { kind: 'tombstone', status: 200 })).toBe('ok');
      expect(await other.peek(duplicateOf(owner))).toEqual({ kind: 'tombstone', requestId: owner.requestId });
      expect(await other.start(duplicateOf(owner))).toEqual({
        kind: 'tombstone',
        requestId: owner.requestId,
      });
    });

    it('of a scope in doubt answers since when, and with the operation of the record', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const beforeMs = Date.now();
      const owner = await bring(store, 'in_doubt', newRequest({ operation: 'withdraw' }));
      const sinceMs = (await store.get(owner.scope))?.changedAtMs;
      expect(sinceMs).toBeGreaterThanOrEqual(beforeMs);
      const { requestId } = owner;
      const expected = { kind: 'in_doubt', sinceMs, operation: 'withdraw', requestId };
      const retry = { ...duplicateOf(owner), operation: 'checkout' };
      expect(await other.peek(retry)).toEqual(expected);
      expect(await other.start(retry)).toEqual(expected);
    });

    it.each(stages)(
      'with another fingerprint, of a scope that is %s, answers mismatch, as a peek does',
      async (stage) => {
        await using nodes = new Nodes(backend);
        const store = await nodes.open();
        const owner = await bring(store, stage);
        const before = await store.get(owner.scope);
        expect(await store.peek(otherOf(owner))).toEqual({ kind: 'mismatch' });
        expect(await store.start(otherOf(owner))).toEqual({ kind: 'mismatch' });
        expect(await store.get(owner.scope)).toEqual(before);
      },
    );

    it('with another fingerprint does not take the scope of a dead owner', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ leaseMs: 20 });
      const owner = await bring(store, 'executing');
      await until(async () => (await store.peek(owner)).kind === 'in_doubt');
      const before = await store.get(owner.scope);
      expect(await store.peek(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await store.start(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await store.get(owner.scope)).toEqual(before);
    });

    it('sent twice answers started twice, and starts once', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'executing');
      const before = await store.get(owner.scope);
      expect(await store.start(owner)).toEqual({ kind: 'started' });
      expect(await other.get(owner.scope)).toEqual(before);
      expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      expect(await store.complete(owner, paid())).toBe('ok');
    });

    it.each(['in_doubt', 'completed'] as const)(
      'sent again when its scope is %s does not start',
      async (stage) => {
        await using nodes = new Nodes(backend);
        const store = await nodes.open();
        const owner = await bring(store, stage);
        const before = await store.get(owner.scope);
        expect(await store.start(owner)).toEqual(await store.peek(owner));
        expect((await store.start(owner)).kind).toBe(stage);
        expect(await store.get(owner.scope)).toEqual(before);
      },
    );

    it('stores its request, gateway, lifetimes and times in the record', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open({}, systemClock, 'gateway-é'), await nodes.open()];
      const parts = { merchant: 'M-Zoë', operation: 'checkout', key: '~'.repeat(255) };
      const request = newRequest({ ...parts, requestId: 'r'.repeat(255) });
      const beforeMs = Date.now();
      await bring(store, 'executing', request);
      const { scope, memory: _, ...head } = request;
      const record = await other.get(scope);
      const createdAtMs = record?.createdAtMs ?? 0;
      expect(record).toMatchObject({
        ...head,
        ...{ state: 'executing', wasInDoubt: false, gatewayId: 'gateway-é', lifetimes },
        ...{ createdAtMs, changedAtMs: createdAtMs },
      });
      expect(createdAtMs).toBeGreaterThanOrEqual(beforeMs);
      expect(createdAtMs).toBeLessThanOrEqual(Date.now());
    });

    it('sets the creation time, which later changes of state keep', async () => {
      await using nodes = new Nodes(backend);
      const createdAtMs = 1_700_000_000_000;
      let wallMs = createdAtMs;
      const store = await nodes.open({}, { ...systemClock, wallMs: () => wallMs });
      const request = await bring(store, 'executing');
      const seen: unknown[] = [];
      for (const write of ['markInDoubt', 'complete'] as const) {
        wallMs += 1000;
        const written = write === 'complete' ? store.complete(request, paid()) : store.markInDoubt(request);
        expect(await written).toBe('ok');
        seen.push(await store.get(request.scope));
      }
      expect(seen).toMatchObject([
        { state: 'in_doubt', createdAtMs, changedAtMs: createdAtMs + 1000, wasInDoubt: true },
        { state: 'completed', createdAtMs, changedAtMs: createdAtMs + 2000, wasInDoubt: true },
      ]);
    });

    it('does not touch the records of other scopes', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const requests = [
        newRequest({ merchant: 'ab', key: 'c' }),
        newRequest({ merchant: 'a', key: 'bc' }),
        newRequest({ merchant: 'abc', key: 'x' }),
        newRequest({ merchant: 'M-2', key: 'x' }),
      ];
      for (const [number, request] of requests.entries()) {
        await bring(store, 'executing', request);
        await store.complete(request, paid(`p-${number}`));
      }
      for (const [number, request] of requests.entries()) {
        const { merchant, key } = request;
        expect(await store.get(recordIdOf('gateway', merchant, key))).toMatchObject({ merchant, key });
        expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid(`p-${number}`), request));
      }
      expect(await store.get(recordIdOf('gateway', 'ab', 'C'))).toBeUndefined();
    });
  });
}
