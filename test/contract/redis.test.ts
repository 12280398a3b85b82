import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import type { Scope } from '../../src/kernel/brands.ts';
import type { StorePlace } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring } from './states.ts';
import { storeContract } from './store-contract.ts';

const server = await startRedis();

const keyOf = (place: StorePlace, scope: Scope) =>
  place.kind === 'redis' ? `${place.prefix}:{${scope}}` : 'no redis place';

const backend: Backend = {
  name: 'redis',
  secondBegin: 'ok',
  place: () => ({ kind: 'redis', url: server.url, prefix: randomUUID() }),
  rewrite: async (place, scope, change) => {
    const key = keyOf(place, scope);
    const record = await server.admin.getBuffer(key);
    if (!record) throw new Error('no record stands there');
    await server.admin.set(key, change(record), 'KEEPTTL');
  },
};

storeContract(backend);

describe('in redis', () => {
  it('a record lives for its retention from the claim, through every write', async () => {
    await using nodes = new Nodes(backend);
    const store = await nodes.open({ retentionMs: 100_000 });
    const owner = await bring(store, 'claimed');
    // Shortened by hand, so that a write that set the time anew would show.
    await server.admin.pexpire(keyOf(nodes.place, owner.scope), 50_000);
    for (const write of ['begin', 'renew', 'markInDoubt', 'settle'] as const) {
      await store[write](owner, paid());
      const left = await server.admin.pttl(keyOf(nodes.place, owner.scope));
      expect(left).toBeGreaterThan(0);
      expect(left).toBeLessThanOrEqual(50_000);
    }
  });

  it.each(['settle', 'release', 'markInDoubt'] as const)('%s gives the lease back', async (write) => {
    await using nodes = new Nodes(backend);
    const store = await nodes.open();
    const owner = await bring(store, 'executing');
    const lease = `${keyOf(nodes.place, owner.scope)}:lease`;
    await until(async () => (await server.admin.exists(lease)) === 1);
    expect(await store[write](owner, paid())).toBe('ok');
    await until(async () => (await server.admin.exists(lease)) === 0);
  });

  it('a begin that came too late leaves no lease behind', async () => {
    await using nodes = new Nodes(backend);
    const store = await nodes.open();
    const owner = await bring(store, 'claimed');
    expect(await store.begin(duplicateOf(owner))).toBe('stale');
    await until(async () => (await server.admin.exists(`${keyOf(nodes.place, owner.scope)}:lease`)) === 0);
  });

  it('an execution that has lost its lease is in flight until it is a lease old', async () => {
    const leaseMs = 1000;
    await using nodes = new Nodes(backend);
    const store = await nodes.open({ leaseMs });
    const [owner, control] = [await bring(store, 'claimed'), await bring(store, 'claimed')];
    // The claim is old by then; what counts is the begin.
    await until(async () => (await store.claim(duplicateOf(control))).kind === 'claimed');
    const beganMs = performance.now();
    expect(await store.begin(owner)).toBe('ok');
    expect(await server.admin.del(`${keyOf(nodes.place, owner.scope)}:lease`)).toBe(1);
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    await until(async () => (await store.claim(duplicateOf(owner))).kind === 'in_doubt');
    expect(performance.now() - beganMs).toBeGreaterThanOrEqual(leaseMs - 1);
  });

  it('the same claim delivered twice is the same claim', async () => {
    await using nodes = new Nodes(backend);
    const store = await nodes.open();
    const owner = await bring(store, 'claimed');
    expect(await store.claim(owner)).toEqual({ kind: 'claimed', tookOver: false });
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
  });

  it('scripts that the server has forgotten are sent again', async () => {
    await using nodes = new Nodes(backend);
    const store = await nodes.open();
    const owner = await bring(store, 'claimed');
    for (const write of ['begin', 'renew', 'markInDoubt', 'settle'] as const) {
      await server.admin.script('FLUSH');
      expect(await store[write](owner, paid())).toBe('ok');
    }
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement: paid() });
  });

  it('a key that holds something else is never absent and never won', async () => {
    await using nodes = new Nodes(backend);
    const store = await nodes.open({ leaseMs: 1 });
    const owner = newRequest();
    await server.admin.rpush(keyOf(nodes.place, owner.scope), 'x');
    await expect(store.claim(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.get(owner.scope)).rejects.toThrow(StoreUnavailable);
    for (const write of ['begin', 'renew', 'settle', 'release', 'markInDoubt'] as const) {
      await expect(store[write](owner, paid())).rejects.toThrow(StoreUnavailable);
    }
    expect(await server.admin.lrange(keyOf(nodes.place, owner.scope), 0, -1)).toEqual(['x']);
  });
});
