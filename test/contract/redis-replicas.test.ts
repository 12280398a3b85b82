import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { Outages } from '../../src/ledger/outages.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { type Execution, StoreUnavailable } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { LONG, openRedisStore, openStore } from '../support/open-store.ts';
import { monitorRedis, type SeenCommand } from '../support/redis-monitor.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

/** A replica on a loaded machine has a part of it for its acknowledgement. */
const TIMEOUT_MS = 3000;

/** A primary with one replica, and a store whose writes wait for it. */
async function withReplica(leaseMs = LONG.leaseMs) {
  const primary = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
  const wire = await startProxy(primary.port);
  const replica = await startRedis({ args: ['--replicaof', '127.0.0.1', `${wire.port}`] });
  await until(async () => /slave0:.*state=online/.test(await primary.admin.info('replication')));
  // The replica counts after its first acknowledgement, which may take a second.
  await primary.admin.set('warm', '1');
  await primary.admin.wait(1, 0);
  let unreplicated = 0;
  const { timeoutMs: _, ...lifetimes } = { ...LONG, leaseMs };
  const openOn = async ({ url }: RedisServer) =>
    await openRedisStore({
      ...{
        gatewayId: 'gateway-1',
        lifetimes,
        timeoutMs: TIMEOUT_MS,
        connectTimeoutMs: 5000,
        clock: systemClock,
      },
      ...{ location: { url }, prefix: 'test', lockNodes: [], replicas: url === primary.url ? 1 : 0 },
      emit: emitTo({ unreplicated: () => unreplicated++ }),
    });
  const stores = [await openOn(primary)];
  /** Promotes the replica, and opens a store on it. */
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
    store: stores[0] as Store,
    unreplicated: () => unreplicated,
    failover,
    [Symbol.asyncDispose]: dispose,
  };
}

const note = { by: 'ada', reason: 'in the books' };

describe.concurrent('with a replica that writes wait for', () => {
  it('everything works while it is online, and there is no warning', async () => {
    await using pair = await withReplica();
    const { store, unreplicated } = pair;
    const owner = await bring(store, 'completed');
    expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
    expect(await store.peek(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
    expect(await store.release(await bring(store, 'executing'))).toBe('ok');
    const successor = duplicateOf(await bring(store, 'in_doubt'));
    expect(await store.restart(successor)).toBe('ok');
    expect(await store.start(successor)).toEqual({ kind: 'started' });
    expect(await store.leaveInDoubt(successor)).toBe('ok');
    expect(await store.resolve(successor.recordId, successor.token, { as: 'released' }, note)).toBe('ok');
    expect(unreplicated()).toBe(0);
    expect(await store.health()).toEqual({ ok: true, detail: 'redis', warnings: [] });
  });

  it('each write is followed by its WAIT on the same connection', async () => {
    await using pair = await withReplica();
    const { primary, store } = pair;
    const owner = await bring(store, 'completed');
    const seen: SeenCommand[] = [];
    await monitorRedis(primary.port, (command) => {
      if (/^(?:evalsha|wait)$/.test(command.name)) seen.push(command);
    });
    const next = newRequest();
    await store.start(next);
    await store.complete(next, paid());
    await store.start(duplicateOf(owner));
    await until(() => seen.length >= 6);
    const names = seen.map(({ name }) => name);
    expect(names).toEqual(['evalsha', 'wait', 'evalsha', 'wait', 'evalsha', 'wait']);
    expect(new Set(seen.map(({ client }) => client)).size).toBe(1);
  });

  it('scripts that the server has forgotten are sent again, each followed by a WAIT', async () => {
    await using pair = await withReplica();
    const { primary, replica, store } = pair;
    const owner = await bring(store, 'executing');
    await primary.admin.script('FLUSH');
    expect(await store.complete(owner, paid())).toBe('ok');
    const next = newRequest();
    await primary.admin.script('FLUSH');
    replica.freeze();
    await expect(store.start(next)).rejects.toThrow('did not reach its replicas');
  });

  it('a replica that is away is an outage of the writes, which the check notices, with one line when it begins and one when it has ended', async () => {
    await using pair = await withReplica();
    const { primary, replica, store } = pair;
    const told: string[] = [];
    const emit = emitTo({
      store_lost: ({ reason }) => told.push(`lost: ${reason}`),
      store_refuses: ({ reason }) => told.push(`refuses: ${reason}`),
      store_works: () => told.push('works'),
    });
    const outages = new Outages(store, systemClock, emit);
    replica.freeze();
    await expect(store.start(newRequest())).rejects.toThrow('did not reach its replicas');
    outages.failed(0);
    const detail = 'redis: the write did not reach its replicas';
    expect(await store.health()).toEqual({ ok: false, detail, warnings: [] });
    await until(() => told.length > 0);
    replica.thaw();
    await until(() => told.length > 1);
    expect(await store.health()).toMatchObject({ ok: true, detail: 'redis' });
    // The replica catches up only after the primary is back.
    await primary.kill();
    await until(() => told.length > 2);
    await primary.restart();
    await until(() => told.length > 3);
    await replica.stop();
    expect(await store.health()).toEqual({ ok: false, detail, warnings: [] });
    outages.close();
    const lost = expect.stringMatching(/^lost: redis: not connected/);
    expect(told).toEqual([`refuses: ${detail}`, 'works', lost, 'works']);
  });

  it('a start that it does not acknowledge fails, and can be released', async () => {
    await using pair = await withReplica();
    const { replica, store } = pair;
    const owner = newRequest();
    replica.freeze();
    await expect(store.start(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.release(owner)).rejects.toThrow(StoreUnavailable);
    // The record is gone from the primary, but the replica may still have it, so the release is not done.
    await expect(store.release(owner)).rejects.toThrow(StoreUnavailable);
    replica.thaw();
    await until(
      async () => (await store.start(duplicateOf(owner)).catch(() => undefined))?.kind === 'started',
    );
  });

  it('a start that was taken back stays so after a failover, although another start took its place meanwhile', async () => {
    await using pair = await withReplica();
    const { wire, store, failover } = pair;
    const [owner, released] = [newRequest(), newRequest()];
    for (const one of [owner, released]) expect(await store.start(one)).toMatchObject({ kind: 'started' });
    // The replica keeps what it has, and gets nothing more.
    wire.swallowReplication(true);
    await expect(store.takeBack(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.release(released)).rejects.toThrow(StoreUnavailable);
    for (const one of [owner, released])
      await expect(store.start(duplicateOf(one))).rejects.toThrow(StoreUnavailable);
    const again = await Promise.allSettled([store.takeBack(owner), store.release(released)]);
    expect(again.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    const promoted = await failover();
    // Those who repeat them until they are answered reach the promoted server.
    expect([await promoted.takeBack(owner), await promoted.release(released)]).toEqual(['ok', 'ok']);
    for (const one of [owner, released])
      expect(await promoted.start(duplicateOf(one))).toMatchObject({ kind: 'started' });
  });

  it('a start replays nothing that a failover could lose, nor does a peek', async () => {
    await using pair = await withReplica();
    const { primary, replica, store } = pair;
    // Stored by a gateway that waits for no replica.
    const other = await openStore({ kind: 'redis', url: primary.url, prefix: 'test' });
    try {
      const [executing, doubtful] = [await bring(other, 'executing'), await bring(other, 'in_doubt')];
      replica.freeze();
      const owner = await bring(other, 'completed');
      const reads: ((request: Execution) => Promise<unknown>)[] = [
        (request) => store.start(request),
        (request) => store.peek(request),
      ];
      // This answer leads to no execution and no replay, so it waits for no replica.
      for (const read of reads) expect(await read(duplicateOf(executing))).toEqual({ kind: 'in_flight' });
      // The mark of the doubtful one keeps a late result from being kept for too short a time.
      const lost = [owner, doubtful].flatMap((one) => reads.map((read) => read(duplicateOf(one))));
      for (const answer of await Promise.allSettled(lost))
        expect(`${'reason' in answer && answer.reason}`).toContain('did not reach its replicas');
      replica.thaw();
      for (const read of reads) {
        const replay = () => read(duplicateOf(owner)).catch(() => undefined);
        expect(await until(replay)).toEqual(replayOf(paid(), owner));
      }
    } finally {
      await other.close();
    }
  });

  // WAIT may cover only the writes of its connection.
  it('a start writes the record that it replays, and so does a peek', async () => {
    await using pair = await withReplica();
    const { primary, store } = pair;
    const owner = await bring(store, 'completed');
    for (const read of ['start', 'peek'] as const) {
      const before = await primary.commandCount('setrange');
      expect(await store[read](duplicateOf(owner))).toEqual(replayOf(paid(), owner));
      expect(await primary.commandCount('setrange')).toBe(before + 1);
    }
  });

  it('a complete that it does not acknowledge is counted, and fails until it does', async () => {
    await using pair = await withReplica();
    const { replica, store, unreplicated } = pair;
    const owner = await bring(store, 'executing');
    replica.freeze();
    await expect(store.complete(owner, paid())).rejects.toThrow(StoreUnavailable);
    await expect(store.complete(owner, paid('again'))).rejects.toThrow(StoreUnavailable);
    expect(unreplicated()).toBe(2);
    expect(await store.get(owner.recordId)).toMatchObject({ state: 'completed' });
    replica.thaw();
    await until(async () => (await store.complete(owner, paid('again')).catch(() => 'away')) === 'ok');
    expect(await store.get(owner.recordId)).toMatchObject({ completion: paid() });
  });

  it('a restart, a release and a resolution that it does not acknowledge fail', async () => {
    await using pair = await withReplica();
    const { replica, store } = pair;
    const [released, restarted, resolved] = [
      await bring(store, 'executing'),
      await bring(store, 'in_doubt'),
      await bring(store, 'in_doubt'),
    ];
    replica.freeze();
    const resolution = { as: 'completed' as const, completion: paid() };
    const resolve = () => store.resolve(resolved.recordId, resolved.token, resolution, note);
    const writes = [store.release(released), store.restart(duplicateOf(restarted)), resolve()];
    for (const write of await Promise.allSettled(writes))
      expect(write).toMatchObject({ status: 'rejected', reason: { name: 'StoreUnavailable' } });
    expect(await store.get(resolved.recordId)).toMatchObject({ state: 'completed' });
    expect(await resolve()).toBe('changed');
  });

  it('many starts at once do not wait for one another', async () => {
    await using pair = await withReplica();
    const { wire, store } = pair;
    // A slow network: one after the other, they would take four times the time limit.
    wire.delayReplies(TIMEOUT_MS / 50);
    const starts = Array.from({ length: 200 }, () => store.start(newRequest()));
    const answers = await Promise.allSettled(starts);
    expect(answers.filter(({ status }) => status === 'rejected').length).toBe(0);
  });

  it('nothing that was started is started again when it takes over', async () => {
    const leaseMs = 300;
    await using pair = await withReplica(leaseMs);
    const { store, failover } = pair;
    const owners = await Promise.all(Array.from({ length: 50 }, () => bring(store, 'executing')));
    const promoted = await failover();
    for (const owner of owners) {
      await until(async () => (await promoted.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await promoted.complete(owner, paid('late'))).toBe('ok');
    }
  });
});
