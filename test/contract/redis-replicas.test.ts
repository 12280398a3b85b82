import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { RedisStore } from '../../src/idempotency/stores/redis/redis-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { LONG } from '../support/open-store.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const TIMEOUT_MS = 1000;

/** A primary with one replica, and a store whose writes wait for it. */
async function withReplica(leaseMs = LONG.leaseMs) {
  const primary = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
  const wire = await startProxy(primary.port);
  const replica = await startRedis({ args: ['--replicaof', '127.0.0.1', `${wire.port}`] });
  await until(async () => /slave0:.*state=online/.test(await primary.admin.info('replication')));
  // It follows from its first acknowledgement on, which may be a second away.
  await primary.admin.set('warm', '1');
  await primary.admin.wait(1, 0);
  const unreplicated: string[] = [];
  const openOn = async ({ url }: RedisServer) =>
    await RedisStore.open({
      ...{ ...LONG, leaseMs, timeoutMs: TIMEOUT_MS, connectTimeoutMs: 5000, clock: systemClock },
      ...{ location: { url }, prefix: 'test', lockNodes: [], replicas: url === primary.url ? 1 : 0 },
      onUnreplicated: () => unreplicated.push('settle'),
    });
  const stores = [await openOn(primary)];
  /** The replica becomes the primary of a new store, as after a failover. */
  const failover = async () => {
    await primary.kill();
    await replica.admin.replicaof('NO', 'ONE');
    const store = await openOn(replica);
    stores.push(store);
    return store;
  };
  const dispose = async () => {
    await Promise.all(stores.map((store) => store.close()));
    await Promise.all([primary.stop(), replica.stop(), wire.close()]);
  };
  return {
    primary,
    replica,
    wire,
    store: stores[0] as RedisStore,
    unreplicated,
    failover,
    [Symbol.asyncDispose]: dispose,
  };
}

describe.concurrent('with a replica to wait for', () => {
  it('everything works while it follows, and nothing is warned about', async () => {
    await using pair = await withReplica();
    const { store, unreplicated } = pair;
    const owner = await bring(store, 'settled');
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement: paid() });
    expect(unreplicated).toEqual([]);
    expect(await store.health()).toEqual({ ok: true, detail: 'redis', warnings: [] });
  });

  it('each write has its WAIT right behind it, over its own connection', async () => {
    await using pair = await withReplica();
    const { primary, store } = pair;
    const monitor = await primary.admin.monitor();
    const seen: { command: string; source: string }[] = [];
    monitor.on('monitor', (_time: string, [command = '']: string[], source: string) => {
      if (/^(?:set|wait)$/i.test(command)) seen.push({ command, source });
    });
    await store.claim(newRequest());
    await store.claim(newRequest());
    await until(() => seen.length >= 4);
    monitor.disconnect();
    expect(seen.map(({ command }) => command.toLowerCase())).toEqual(['set', 'wait', 'set', 'wait']);
    expect(new Set(seen.map(({ source }) => source)).size).toBe(1);
  });

  it('a claim that does not reach it wins nothing, and can be taken back', async () => {
    await using pair = await withReplica();
    const { replica, store } = pair;
    const owner = newRequest();
    replica.freeze();
    await expect(store.claim(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.release(owner)).rejects.toThrow(StoreUnavailable);
    replica.thaw();
    await until(
      async () => (await store.claim(duplicateOf(owner)).catch(() => undefined))?.kind === 'claimed',
    );
  });

  it('a takeover that does not reach it wins nothing', async () => {
    await using pair = await withReplica(100);
    const { replica, store } = pair;
    const [owner, control] = [await bring(store, 'claimed'), await bring(store, 'claimed')];
    await until(async () => (await store.claim(duplicateOf(control))).kind === 'claimed');
    replica.freeze();
    await expect(store.claim(duplicateOf(owner))).rejects.toThrow(StoreUnavailable);
  });

  it('a begin that does not reach it must not be followed by a request', async () => {
    await using pair = await withReplica();
    const { replica, store } = pair;
    const owner = await bring(store, 'claimed');
    replica.freeze();
    await expect(store.begin(owner)).rejects.toThrow(StoreUnavailable);
  });

  it('a settlement that does not reach it is told, and is to be settled again until it does', async () => {
    await using pair = await withReplica();
    const { replica, store, unreplicated } = pair;
    const owner = await bring(store, 'executing');
    replica.freeze();
    await expect(store.settle(owner, paid())).rejects.toThrow(StoreUnavailable);
    await expect(store.settle(owner, paid('again'))).rejects.toThrow(StoreUnavailable);
    expect(unreplicated).toEqual(['settle', 'settle']);
    expect(await store.get(owner.scope)).toMatchObject({ state: 'settled' });
    replica.thaw();
    await until(async () => (await store.settle(owner, paid('again')).catch(() => 'away')) === 'ok');
    expect(await store.get(owner.scope)).toMatchObject({ settlement: paid() });
  });

  it('a settlement that was lost with the primary is settled anew on what was the replica', async () => {
    await using pair = await withReplica();
    const { wire, store, failover } = pair;
    const owner = await bring(store, 'executing');
    wire.swallowReplies(true);
    await expect(store.settle(owner, paid())).rejects.toThrow(StoreUnavailable);
    const promoted = await failover();
    expect(await promoted.get(owner.scope)).toMatchObject({ state: 'executing' });
    expect(await promoted.settle(owner, paid())).toBe('ok');
    expect(await promoted.get(owner.scope)).toMatchObject({ settlement: paid() });
  });

  it('a release that does not reach it is to be repeated', async () => {
    await using pair = await withReplica();
    const { replica, store } = pair;
    const owner = await bring(store, 'executing');
    replica.freeze();
    await expect(store.release(owner)).rejects.toThrow(StoreUnavailable);
  });

  it('a resolution that does not reach it is not reported as done', async () => {
    await using pair = await withReplica();
    const { replica, store } = pair;
    const owner = await bring(store, 'in_doubt');
    replica.freeze();
    const note = { by: 'ada', reason: 'in the books' };
    const resolution = { as: 'settled' as const, settlement: paid() };
    const resolved = store.resolve(owner.scope, owner.token, resolution, note);
    await expect(resolved).rejects.toThrow('the resolution did not reach its replicas');
    expect(await store.get(owner.scope)).toMatchObject({ state: 'settled' });
    expect(await store.resolve(owner.scope, owner.token, resolution, note)).toBe('changed');
  });

  it('many claims at once do not wait for one another', async () => {
    await using pair = await withReplica();
    const { wire, store } = pair;
    // Far away: one after the other, they would take four times the time limit.
    wire.delayReplies(TIMEOUT_MS / 50);
    const claims = Array.from({ length: 200 }, () => store.claim(newRequest()));
    const answers = await Promise.allSettled(claims);
    expect(answers.filter(({ status }) => status === 'rejected').length).toBe(0);
  });

  it('neither settlements nor replays wait for one another while it is away', async () => {
    await using pair = await withReplica();
    const { replica, store } = pair;
    const settled = await bring(store, 'settled');
    const owners = await Promise.all(Array.from({ length: 20 }, () => bring(store, 'executing')));
    replica.freeze();
    const settling = Promise.allSettled(owners.map((owner) => store.settle(owner, paid())));
    expect(await store.get(settled.scope)).toMatchObject({ state: 'settled' });
    expect(await store.claim(duplicateOf(settled))).toEqual({ kind: 'settled', settlement: paid() });
    const told = (await settling).map(({ status }) => status);
    expect(told).toEqual(owners.map(() => 'rejected'));
    for (const { scope } of owners) expect(await store.get(scope)).toMatchObject({ state: 'settled' });
  });

  it('nothing that was begun is won again when it takes over', async () => {
    const leaseMs = 300;
    await using pair = await withReplica(leaseMs);
    const { store, failover } = pair;
    const owners = await Promise.all(Array.from({ length: 50 }, () => bring(store, 'claimed')));
    const begun = await Promise.all(owners.map((owner) => store.begin(owner)));
    expect(begun).toEqual(owners.map(() => 'ok'));
    const promoted = await failover();
    for (const owner of owners) {
      await until(async () => (await promoted.claim(duplicateOf(owner))).kind === 'in_doubt');
      expect(await promoted.settle(owner, paid('late'))).toBe('ok');
    }
  });
});
