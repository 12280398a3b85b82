import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { ClaimRequest, Store } from '../../src/idempotency/store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, stages } from './states.ts';

const RETENTION = { retentionMs: 1200, leaseMs: 150 };
/** Were retention counted anew from a write, the record would outlive its control by that much. */
const LATER_MS = 300;

/** Each leads a scope that was claimed some time ago through a write that must not extend its life. */
const touches: [what: string, touch: (store: Store, owner: ClaimRequest) => Promise<void>][] = [
  ['begin', async (store, owner) => expect(await store.begin(owner)).toBe('ok')],
  [
    'settle',
    async (store, owner) => {
      await store.begin(owner);
      expect(await store.settle(owner, paid())).toBe('ok');
      expect(await store.settle(owner, paid())).toBe('ok');
    },
  ],
  [
    'renewal',
    async (store, owner) => {
      await store.begin(owner);
      for (let renewals = 0; renewals < 3; renewals++) expect(await store.renew(owner)).not.toBe('stale');
    },
  ],
  [
    'mark of doubt',
    async (store, owner) => {
      await store.begin(owner);
      expect(await store.markInDoubt(owner)).toBe('ok');
    },
  ],
  [
    'takeover',
    async (store, owner) => {
      expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'claimed', tookOver: true });
    },
  ],
];

const writes = ['begin', 'renew', 'settle', 'release', 'markInDoubt'] as const;

export function expiry(backend: Backend): void {
  describe.concurrent('retention', () => {
    it('keeps a record of any state for its time; then its owner can write nothing, and the scope is new', async () => {
      await using nodes = new Nodes(backend);
      const retentionMs = 1000;
      const store = await nodes.open({ retentionMs });
      const startedMs = performance.now();
      const owners = await Promise.all(stages.map((stage) => bring(store, stage)));
      for (const owner of owners) {
        await until(async () => (await store.get(owner.scope)) === undefined);
        expect(performance.now() - startedMs).toBeGreaterThanOrEqual(retentionMs - 1);
        for (const write of writes) expect(await store[write](owner, paid('late'))).toBe('stale');
        expect(await store.get(owner.scope)).toBeUndefined();
        const next = { ...newRequest({ body: 'other' }), scope: owner.scope };
        expect(await store.claim(next)).toEqual({ kind: 'claimed', tookOver: false });
        expect(await store.get(owner.scope)).toMatchObject({ state: 'claimed', token: next.token });
      }
    });

    it('counts from the first claim, whatever is written later', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(RETENTION), await nodes.open(RETENTION)];
      const owners = await Promise.all(touches.map(() => bring(store, 'claimed')));
      const control = await bring(store, 'claimed');
      await sleep(LATER_MS);
      for (const [number, [, touch]] of touches.entries()) await touch(other, owners[number] ?? control);
      await until(async () => (await store.get(control.scope)) === undefined);
      const left = await Promise.all(owners.map((owner) => store.get(owner.scope)));
      const outlived = touches.filter((_, number) => left[number]).map(([what]) => what);
      expect(outlived).toEqual([]);
    });
  });
}
