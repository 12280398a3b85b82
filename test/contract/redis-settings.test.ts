import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { measured } from '../../src/ledger/measured.ts';
import { StoreWatch } from '../../src/ledger/store-watch.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { STORE_FORMAT, StoreUnavailable } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { freePort } from '../support/free-port.ts';
import { GATEWAY_ID, LONG, openRedisStore } from '../support/open-store.ts';
import { emptied, type RedisServer, type RedisServerOptions, startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeFolder } from '../support/sqlite-files.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

type Options = Parameters<typeof openRedisStore>[0];

/** A store that is closed after the test. */
async function open(url: string, more: Partial<Options> = {}): Promise<Store> {
  const { timeoutMs, ...lifetimes } = LONG;
  const store = await openRedisStore({
    ...{ location: { url }, prefix: 'test', lockNodes: [], replicas: 0, timeoutMs, connectTimeoutMs: 5000 },
    ...{ gatewayId: GATEWAY_ID, lifetimes, clock: systemClock },
    ...more,
  });
  onTestFinished(() => store.close());
  return store;
}

async function warningsOf(url: string): Promise<string[]> {
  const store = await open(url, { mayLoseOnFailover: true });
  const { ok, warnings } = await store.health();
  expect(ok).toBe(true);
  return warnings;
}

describe('a store that opens on a redis', () => {
  it('that syncs every write has no warning', async () => {
    expect(await warningsOf((await startRedis()).url)).toEqual([]);
  });

  it.each(['allkeys-lru', 'volatile-lru', 'volatile-ttl'])('that evicts by %s is refused', async (policy) => {
    const { url } = await startRedis({ args: ['--maxmemory', '100mb', '--maxmemory-policy', policy] });
    const opening = open(url);
    await expect(opening).rejects.toThrow(StoreUnavailable);
    await expect(opening).rejects.toThrow(
      `redis has maxmemory-policy ${policy}, which evicts records: it must be noeviction`,
    );
  });

  it.each<[string, RedisServerOptions, RegExp]>([
    ['writes nothing to the disk', { appendonly: false }, /without appendonly/],
    ['syncs once a second', { args: ['--appendfsync', 'everysec'] }, /appendfsync everysec/],
    [
      'syncs nothing while it rewrites its file',
      { args: ['--no-appendfsync-on-rewrite', 'yes'] },
      /no-appendfsync-on-rewrite yes/,
    ],
  ])('that %s has a warning', async (_, options, warning) => {
    const { url } = await startRedis(options);
    expect(await warningsOf(url)).toEqual([expect.stringMatching(warning)]);
  });

  it('that is a replica is refused if it takes writes, because its master overwrites them', async () => {
    const primary = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
    const server = await startRedis({ args: ['--replicaof', '127.0.0.1', `${primary.port}`] });
    await until(async () => (await server.admin.info('replication')).includes('master_link_status:up'));
    const store = await open(server.url);
    await server.admin.config('SET', 'replica-read-only', 'no');
    const detail = 'redis is a replica that takes writes, which its master overwrites: it must be the master';
    expect(await store.health()).toMatchObject({ ok: false, detail });
    await expect(store.start(newRequest())).rejects.toMatchObject({ message: detail, maybeWritten: false });
    await expect(open(server.url)).rejects.toThrow(detail);
    await server.admin.replicaof('NO', 'ONE');
    await until(async () => (await store.health()).ok);
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  });

  it('with more replicas than a write waits for gets no start, because one without the write may be promoted', async () => {
    const primary = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
    const follow = async (replicas: number) => {
      await startRedis({ args: ['--replicaof', '127.0.0.1', `${primary.port}`] });
      await until(async () =>
        (await primary.admin.info('replication')).includes(`connected_slaves:${replicas}`),
      );
    };
    await follow(1);
    const { url } = primary;
    const store = await open(url, { replicas: 1 });
    expect(await store.health()).toEqual({ ok: true, detail: 'redis', warnings: [] });
    await until(async () => (await store.start(newRequest()).catch(() => undefined))?.kind === 'started');
    // Another replica follows while the store is open.
    await follow(2);
    const excess =
      'redis has 2 replicas and durability.replicas is 1: a failover loses records that the promoted replica does not have yet';
    const detail = `${excess}. Set durability.replicas to 2, or durability.mayLoseOnFailover to true, and keys may be paid twice`;
    for (const one of [store, await open(url, { replicas: 1 })]) {
      expect(await one.health()).toEqual({ ok: false, detail, warnings: [detail] });
      await expect(one.start(newRequest())).rejects.toMatchObject({ message: detail, maybeWritten: false });
    }
    const careless = await open(url, { replicas: 1, mayLoseOnFailover: true });
    expect(await careless.health()).toEqual({ ok: true, detail: 'redis', warnings: [excess] });
    const waiting = await open(url, { replicas: 2 });
    expect(await waiting.health()).toEqual({ ok: true, detail: 'redis', warnings: [] });
    await until(async () => (await waiting.start(newRequest()).catch(() => undefined))?.kind === 'started');
  });

  it('whose file is fetched by redis-cli --rdb gets starts meanwhile, because that can never be promoted', async () => {
    const server = await startRedis();
    const store = await open(server.url);
    // What redis-cli sends. The server then waits some seconds for others that want its file.
    const backup = connect(server.port, '127.0.0.1').on('error', () => {});
    onTestFinished(() => void backup.destroy());
    for (const command of ['REPLCONF capa eof', 'REPLCONF rdb-only 1']) {
      backup.write(`${command}\r\n`);
      await once(backup, 'data');
    }
    backup.write('SYNC\r\n');
    await until(async () => (await server.admin.info('replication')).includes('state=wait_bgsave'));
    expect(await store.health()).toEqual({ ok: true, detail: 'redis', warnings: [] });
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
    expect(await server.admin.info('replication')).toContain('connected_slaves:1');
  });

  it('that does not allow CONFIG has no warning', async () => {
    const server = await startRedis();
    await server.admin.call('ACL', 'SETUSER', 'limited', 'on', '>secret', '~*', '&*', '+@all', '-config');
    expect(await warningsOf(server.url.replace('//', '//limited:secret@'))).toEqual([]);
  });

  it('whose INFO has no policy, as that of Redis Enterprise, is asked for it, and has a warning if it does not say', async () => {
    const server = await startRedis({ args: ['--maxmemory', '100mb', '--maxmemory-policy', 'volatile-lru'] });
    const proxy = createServer((client) => {
      const to = connect(server.port, '127.0.0.1').on('error', () => client.destroy());
      client.on('error', () => to.destroy()).pipe(to);
      to.on('data', (bytes) =>
        client.write(bytes.toString('latin1').replaceAll('maxmemory_policy:', 'not_to_be_shown_:'), 'latin1'),
      );
    }).listen(0, '127.0.0.1');
    onTestFinished(() => void proxy.close());
    await once(proxy, 'listening');
    const url = `redis://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
    await expect(open(url)).rejects.toThrow('redis has maxmemory-policy volatile-lru, which evicts records');
    await server.admin.acl('SETUSER', 'default', '-config');
    expect(await warningsOf(url)).toEqual([expect.stringMatching(/does not say its maxmemory-policy/)]);
  });

  it('whose database cannot be selected is not used, because another one has other records', async () => {
    const server = await startRedis({ args: ['--databases', '2'] });
    await expect(open(`${server.url}/2`, { connectTimeoutMs: 300 })).rejects.toThrow(
      'redis cannot be reached: not connected: ERR DB index is out of range',
    );
    const store = await open(`${server.url}/1`);
    await server.admin.acl('SETUSER', 'default', '-select');
    await emptied(server);
    await until(async () => (await store.health()).detail.includes('NOPERM'));
    await expect(store.start(newRequest())).rejects.toMatchObject({ maybeWritten: false });
    await server.admin.acl('SETUSER', 'default', '+select');
    await until(async () => (await store.health()).ok);
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
    expect(await server.admin.dbsize()).toBe(0);
  });

  it('that starts later waits for it', async () => {
    const server = await startRedis();
    await server.kill();
    const opening = open(server.url);
    await server.restart();
    expect(await (await opening).health()).toMatchObject({ ok: true });
  });
});

describe('a store by a name that leads to another server since a failover', () => {
  it('leaves the former master, whose connections stay open, and starts keys on the new one', async () => {
    const fast = ['--repl-diskless-sync-delay', '0'];
    const [former, next] = await Promise.all([startRedis({ args: fast }), startRedis({ args: fast })]);
    const follows = async (replica: RedisServer, { port }: RedisServer) => {
      await replica.admin.replicaof('127.0.0.1', port);
      await until(async () => (await replica.admin.info('replication')).includes('master_link_status:up'));
    };
    await follows(next, former);
    const name = await startProxy(former.port);
    vi.useFakeTimers({ toFake: ['setInterval'] });
    onTestFinished(() => void vi.useRealTimers());
    const store = await open(name.url, { replicas: 1 });
    const paidBefore = newRequest();
    await until(async () => (await store.start(paidBefore).catch(() => undefined))?.kind === 'started');
    await next.admin.replicaof('NO', 'ONE');
    name.aimAt(next.port);
    await follows(former, next);
    expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining('READONLY') });
    vi.advanceTimersByTime(10_000);
    await until(async () => (await store.health()).ok);
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
    expect(await store.start(duplicateOf(paidBefore))).toEqual({ kind: 'in_flight' });
  });

  it('does not take a replica that has lost its master for a store that forgot', async () => {
    const [master, stale] = await Promise.all([startRedis(), startRedis()]);
    const name = await startProxy(master.port);
    const redis = await open(name.url);
    const store: Store = measured(redis, systemClock, emitTo({}), () => watch.refusal);
    const watch = await StoreWatch.open({
      ...{ file: join(storeFolder(), 'identity.json'), store, mode: 'protect', refuses: true },
      ...{ warnForMs: 60_000, clock: systemClock, emit: emitTo({}) },
    });
    onTestFinished(() => watch.close());
    watch.begin();
    await until(async () => (await store.start(newRequest()).catch(() => undefined))?.kind === 'started');
    // It has nothing yet, and cannot reach its master.
    await stale.admin.replicaof('127.0.0.1', await freePort());
    name.aimAt(stale.port);
    name.cut();
    await until(async () => (await store.health()).detail.includes('READONLY'));
    await watch.visit();
    await expect(store.start(newRequest())).rejects.toMatchObject({ maybeWritten: false });
    name.aimAt(master.port);
    name.cut();
    await until(async () => (await store.start(newRequest()).catch(() => undefined))?.kind === 'started');
    expect(watch.warnings).toEqual([]);
  });
});

describe('the health check of a redis', () => {
  it('writes a probe that expires', async () => {
    const server = await startRedis();
    const store = await open(server.url);
    expect(await store.health()).toEqual({ ok: true, detail: 'redis', warnings: [] });
    const keys = await server.admin.keys('{test:*');
    expect(keys).toEqual([`{test:${STORE_FORMAT}:0}:probe:${GATEWAY_ID}`]);
    expect(await server.admin.pttl(keys[0] ?? '')).toBeGreaterThan(0);
    expect(await store.list({ inDoubt: false, limit: 10 })).toEqual({ records: [] });
  });

  it('looks at the settings again after a new connection', async () => {
    const server = await startRedis();
    const store = await open(server.url);
    const warnings = async () => (await store.health()).warnings;
    expect(await warnings()).toEqual([]);
    await server.restart(['--appendonly', 'no']);
    await until(async () => /without appendonly/.test((await warnings()).join()));
    await server.restart(['--maxmemory', '100mb', '--maxmemory-policy', 'allkeys-lru']);
    await until(async () => /which evicts records/.test((await store.health()).detail));
    await server.restart();
    await until(async () => (await store.health()).ok && (await warnings()).length === 0);
  });

  it('refuses starts as soon as it evicts records, answers what it knows, and starts again when it does not', async () => {
    const server = await startRedis();
    const store = await open(server.url);
    const [completed, doubtful] = [await bring(store, 'completed'), await bring(store, 'in_doubt')];
    await server.admin.config('SET', 'maxmemory-policy', 'allkeys-lru');
    const detail = 'redis has maxmemory-policy allkeys-lru, which evicts records: it must be noeviction';
    expect(await store.health()).toMatchObject({ ok: false, detail });
    expect(store.refusing).toBe(detail);
    for (const write of [store.start(newRequest()), store.restart(duplicateOf(doubtful))])
      await expect(write).rejects.toMatchObject({ message: detail, maybeWritten: false });
    expect(await store.peek(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    await server.admin.config('SET', 'maxmemory', '1');
    // It evicts before each command that may use memory, and refuses the command if that was not enough.
    await server.admin.set('other', '1').catch(() => {});
    await server.admin.config('SET', 'maxmemory', '0', 'maxmemory-policy', 'noeviction');
    expect(await store.health()).toMatchObject({
      ok: true,
      warnings: [
        expect.stringMatching(/^redis has evicted \d+ keys since it was started: .* payouts can run again$/),
      ],
    });
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  });

  it.each([
    ['forwards', -5000, 'by 5000 ms: records expire early'],
    ['backwards', 5000, 'by -5000 ms: records expire late'],
  ])('warns if the clock of its host is stepped %s', async (_, shiftMs, warning) => {
    const server = await startRedis();
    let monotonicShiftMs = 0;
    // The gateway compares Redis' clock with its monotonic clock, so a shift of the second looks like a step of the first.
    const clock = { ...systemClock, monotonicMs: () => systemClock.monotonicMs() + monotonicShiftMs };
    const steps: number[] = [];
    const store = await open(server.url, {
      clock,
      emit: emitTo({ clock_stepped: ({ stepMs }) => steps.push(stepMs) }),
    });
    for (let checks = 0; checks < 2; checks++) expect((await store.health()).warnings).toEqual([]);
    monotonicShiftMs = shiftMs;
    const stepped = await store.health();
    expect(stepped.ok).toBe(true);
    expect(stepped.warnings).toEqual([
      expect.stringMatching(/^the clock of the store's host was stepped by -?\d+ ms/),
    ]);
    expect(Math.abs((steps[0] ?? 0) + shiftMs)).toBeLessThan(500);
    expect(stepped.warnings[0]?.replace(/by (-?)\d+/, 'by $15000')).toContain(warning);
    await store.health();
    expect(steps).toHaveLength(1);
  });

  it('warns of a step of its host’s clock that came while the clock was read', async () => {
    const server = await startRedis();
    let shiftMs = 0;
    let shiftsAtReading = 0;
    const clock = {
      ...systemClock,
      monotonicMs() {
        const nowMs = systemClock.monotonicMs() + shiftMs;
        if (--shiftsAtReading === 0) shiftMs = 5000;
        return nowMs;
      },
    };
    const steps: number[] = [];
    const store = await open(server.url, {
      clock,
      emit: emitTo({ clock_stepped: ({ stepMs }) => steps.push(stepMs) }),
    });
    await store.health();
    // The next look at this clock is the one before TIME is sent.
    shiftsAtReading = 1;
    await store.health();
    expect(shiftMs).toBe(5000);
    await store.health();
    expect(steps).toHaveLength(1);
  });
});
