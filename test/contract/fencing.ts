import { describe, expect, it } from 'vitest';
import type { Fenced, Owner, Store } from '../../src/idempotency/store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, type Stage } from './states.ts';

type From = Stage | 'absent';
type Write = 'begin' | 'renew' | 'settle' | 'release' | 'markInDoubt';
type Row = [write: Write, from: From, answer: Fenced | 'lost', becomes: From];

/** The owner's writes: from which state, their answer, and what stands afterwards. */
const owners: Row[] = [
  ['begin', 'absent', 'stale', 'absent'],
  ['begin', 'claimed', 'ok', 'executing'],
  ['begin', 'in_doubt', 'stale', 'in_doubt'],
  ['begin', 'settled', 'stale', 'settled'],
  ['renew', 'absent', 'stale', 'absent'],
  ['renew', 'executing', 'ok', 'executing'],
  ['renew', 'settled', 'ok', 'settled'],
  ['settle', 'absent', 'stale', 'absent'],
  ['settle', 'claimed', 'stale', 'claimed'],
  ['settle', 'executing', 'ok', 'settled'],
  ['settle', 'in_doubt', 'ok', 'settled'],
  ['settle', 'settled', 'ok', 'settled'],
  ['release', 'absent', 'stale', 'absent'],
  ['release', 'claimed', 'ok', 'absent'],
  ['release', 'executing', 'ok', 'absent'],
  ['release', 'in_doubt', 'ok', 'absent'],
  ['release', 'settled', 'stale', 'settled'],
  ['markInDoubt', 'absent', 'stale', 'absent'],
  ['markInDoubt', 'claimed', 'stale', 'claimed'],
  ['markInDoubt', 'executing', 'ok', 'in_doubt'],
  ['markInDoubt', 'in_doubt', 'ok', 'in_doubt'],
  ['markInDoubt', 'settled', 'stale', 'settled'],
];

const writes: Write[] = ['begin', 'renew', 'settle', 'release', 'markInDoubt'];
const standing: Stage[] = ['claimed', 'executing', 'in_doubt', 'settled'];

const write = async (store: Store, name: Write, owner: Owner) => await store[name](owner, paid('late'));

export function fencing(backend: Backend): void {
  describe('a write', () => {
    it.each(owners)(
      '%s, where the scope is %s, is %s and leaves it %s',
      async (name, from, answer, becomes) => {
        await using nodes = new Nodes(backend);
        const [store, other] = [await nodes.open(), await nodes.open()];
        const owner = from === 'absent' ? newRequest() : await bring(store, from);
        expect(await write(store, name, owner)).toBe(answer);
        const stands = await other.get(owner.scope);
        expect(stands?.state ?? 'absent').toBe(becomes);
        if (stands) expect(stands.token).toEqual(owner.token);
      },
    );

    it.each(writes.flatMap((name) => standing.map((from) => [name, from] as const)))(
      '%s, under a foreign token, where the scope is %s, is stale and changes nothing',
      async (name, from) => {
        await using nodes = new Nodes(backend);
        const store = await nodes.open();
        const owner = await bring(store, from);
        const before = await store.get(owner.scope);
        expect(await write(store, name, duplicateOf(owner))).toBe('stale');
        expect(await store.get(owner.scope)).toEqual(before);
      },
    );

    it('keeps the first result when it is settled twice', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'executing');
      expect(await store.settle(owner, paid('first'))).toBe('ok');
      expect(await store.settle(owner, paid('second'))).toBe('ok');
      expect(await store.settle(owner, { kind: 'tombstone', status: 200 })).toBe('ok');
      expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement: paid('first') });
    });

    it(`begins once: the second time is ${backend.secondBegin}`, async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'executing');
      expect(await store.begin(owner)).toBe(backend.secondBegin);
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', token: owner.token });
    });

    it.each(['claimed', 'executing', 'in_doubt'] as const)(
      'frees a scope that is %s by release, for anybody',
      async (from) => {
        await using nodes = new Nodes(backend);
        const [store, other] = [await nodes.open(), await nodes.open()];
        const first = await bring(store, from);
        expect(await store.release(first)).toBe('ok');
        expect(await store.release(first)).toBe('stale');
        const next = { ...newRequest({ body: 'other' }), scope: first.scope };
        await bring(other, 'executing', next);
        for (const name of writes) expect(await write(store, name, first)).toBe('stale');
        expect(await store.get(first.scope)).toMatchObject({ state: 'executing', token: next.token });
      },
    );

    it('by many owners at once touches only their own scopes', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const requests = await Promise.all(Array.from({ length: 50 }, () => bring(store, 'executing')));
      const settled = await Promise.all(requests.map((request) => store.settle(request, paid(request.key))));
      expect(settled).toEqual(requests.map(() => 'ok'));
      for (const request of requests) {
        const claim = await store.claim(duplicateOf(request));
        expect(claim).toEqual({ kind: 'settled', settlement: paid(request.key) });
      }
    });
  });
}
