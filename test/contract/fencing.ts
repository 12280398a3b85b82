import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { systemClock } from '../../src/lib/clock.ts';
import type { Execution, Fenced } from '../../src/store/contract.ts';
import { LONG } from '../support/open-store.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf, type Stage, stages } from './states.ts';

type From = Stage | 'absent';
type Write = 'renew' | 'complete' | 'release' | 'markInDoubt';
type Row = [write: Write, from: From, answer: Fenced | 'lost', becomes: From];

/** Each write of an owner: the state before, the answer, and the state afterwards. */
const owners: Row[] = [
  ['renew', 'absent', 'stale', 'absent'],
  ['renew', 'executing', 'ok', 'executing'],
  ['renew', 'completed', 'ok', 'completed'],
  ['complete', 'absent', 'ok', 'completed'],
  ['complete', 'executing', 'ok', 'completed'],
  ['complete', 'in_doubt', 'ok', 'completed'],
  ['complete', 'completed', 'ok', 'completed'],
  ['release', 'absent', 'stale', 'absent'],
  ['release', 'executing', 'ok', 'absent'],
  ['release', 'in_doubt', 'ok', 'absent'],
  ['release', 'completed', 'stale', 'completed'],
  ['markInDoubt', 'absent', 'stale', 'absent'],
  ['markInDoubt', 'executing', 'ok', 'in_doubt'],
  ['markInDoubt', 'in_doubt', 'ok', 'in_doubt'],
  ['markInDoubt', 'completed', 'stale', 'completed'],
];

export const ownersWrites: readonly Write[] = ['renew', 'complete', 'release', 'markInDoubt'];

export function write(store: Store, name: Write, owner: Execution): Promise<Fenced | 'lost'> {
  return name === 'complete' ? store.complete(owner, paid('late')) : store[name](owner);
}

export function fencing(backend: Backend): void {
  describe('a write', () => {
    it.each(owners)(
      '%s, where the scope is %s, is %s and leaves it %s',
      async (name, from, answer, becomes) => {
        await using nodes = new Nodes(backend);
        const [store, other] = [await nodes.open(), await nodes.open()];
        const owner = from === 'absent' ? newRequest() : await bring(store, from);
        expect(await write(store, name, owner)).toBe(answer);
        const record = await other.get(owner.scope);
        expect(record?.state ?? 'absent').toBe(becomes);
        if (record) expect(record.token).toEqual(owner.token);
      },
    );

    it.each(ownersWrites.flatMap((name) => stages.map((from) => [name, from] as const)))(
      '%s, under a foreign token, where the scope is %s, is stale and changes nothing',
      async (name, from) => {
        await using nodes = new Nodes(backend);
        const store = await nodes.open();
        const owner = await bring(store, from);
        const before = await store.get(owner.scope);
        expect(await write(store, name, duplicateOf(owner))).toBe('stale');
        expect(await write(store, name, otherOf(owner))).toBe('stale');
        expect(await store.get(owner.scope)).toEqual(before);
      },
    );

    it('that completes again keeps the first result', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'executing');
      expect(await store.complete(owner, paid('first'))).toBe('ok');
      const before = await store.get(owner.scope);
      expect(await store.complete(owner, paid('second'))).toBe('ok');
      expect(await store.complete(owner, { kind: 'tombstone', status: 200 })).toBe('ok');
      expect(await store.get(owner.scope)).toEqual(before);
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid('first'), owner));
    });

    it('that completes an absent scope creates the whole record, as one that was in doubt', async () => {
      await using nodes = new Nodes(backend);
      const wallMs = 1_700_000_000_000;
      const clock = { ...systemClock, wallMs: () => wallMs };
      const [store, other] = [await nodes.open({}, clock, 'gateway-2'), await nodes.open()];
      const owner = newRequest({ merchant: 'M-Zoë', operation: 'checkout' });
      expect(await store.complete(owner, paid('late'))).toBe('ok');
      const { scope, memory, ...head } = owner;
      const { timeoutMs: _, ...lifetimes } = LONG;
      expect(await other.get(scope)).toMatchObject({
        ...head,
        ...{ state: 'completed', wasInDoubt: true, completion: paid('late') },
        ...{ gatewayId: 'gateway-2', lifetimes, createdAtMs: wallMs, changedAtMs: wallMs },
      });
      expect(await other.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
      expect(await other.start(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await other.complete(duplicateOf(owner), paid('other'))).toBe('stale');
      expect(await store.complete(owner, paid('again'))).toBe('ok');
      expect(await other.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
    });

    it.each(['executing', 'in_doubt'] as const)(
      'that releases a scope that is %s makes it free for any request',
      async (from) => {
        await using nodes = new Nodes(backend);
        const [store, other] = [await nodes.open(), await nodes.open()];
        const first = await bring(store, from);
        expect(await store.release(first)).toBe('ok');
        expect(await store.release(first)).toBe('stale');
        const next = { ...newRequest({ body: 'other' }), scope: first.scope };
        await bring(other, 'executing', next);
        for (const name of ownersWrites) expect(await write(store, name, first)).toBe('stale');
        expect(await store.get(first.scope)).toMatchObject({ state: 'executing', token: next.token });
        expect(await store.start(duplicateOf(next))).toEqual({ kind: 'in_flight' });
      },
    );

    it('of each of many owners at once changes only its own scope', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const requests = await Promise.all(Array.from({ length: 50 }, () => bring(store, 'executing')));
      const completed = await Promise.all(
        requests.map((request) => store.complete(request, paid(request.key))),
      );
      expect(completed).toEqual(requests.map(() => 'ok'));
      for (const request of requests)
        expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid(request.key), request));
    });
  });
}
