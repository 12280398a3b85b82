import { describe, expect, it, onTestFinished } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { RedisStore } from '../../src/idempotency/stores/redis/redis-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { LONG, openStore } from '../support/open-store.ts';
import { type RedisServerOptions, startRedis } from '../support/redis-server.ts';
import { until } from '../support/until.ts';

async function warningsOf(url: string): Promise<string[]> {
  const store = await openStore({ kind: 'redis', url, prefix: 'test' });
  onTestFinished(() => store.close());
  const { ok, warnings } = await store.health();
  expect(ok).toBe(true);
  return warnings;
}

describe('a redis that is given', () => {
  it('with every write on the disk is taken without a warning', async () => {
    expect(await warningsOf((await startRedis()).url)).toEqual([]);
  });

  it.each(['allkeys-lru', 'volatile-lru', 'volatile-ttl'])('with %s is refused', async (policy) => {
    const { url } = await startRedis({ args: ['--maxmemory', '100mb', '--maxmemory-policy', policy] });
    const opening = openStore({ kind: 'redis', url, prefix: 'test' });
    await expect(opening).rejects.toThrow(StoreUnavailable);
    await expect(opening).rejects.toThrow(
      `redis has maxmemory-policy ${policy}, which evicts records: it must be noeviction`,
    );
  });

  it.each<[string, RedisServerOptions, RegExp]>([
    ['nothing on the disk', { appendonly: false }, /without appendonly/],
    ['a sync once a second', { args: ['--appendfsync', 'everysec'] }, /appendfsync everysec/],
  ])('with %s is taken with a warning', async (_, options, warning) => {
    const { url } = await startRedis(options);
    expect(await warningsOf(url)).toEqual([expect.stringMatching(warning)]);
  });

  it('with a replica is taken with a warning', async () => {
    const primary = await startRedis();
    await startRedis({ args: ['--replicaof', '127.0.0.1', `${primary.port}`] });
    await until(async () => (await primary.admin.info('replication')).includes('connected_slaves:1'));
    expect(await warningsOf(primary.url)).toEqual([expect.stringMatching(/replicas/)]);
  });

  it('that keeps its settings to itself is taken all the same', async () => {
    const server = await startRedis();
    await server.admin.call('ACL', 'SETUSER', 'limited', 'on', '>secret', '~*', '&*', '+@all', '-config');
    expect(await warningsOf(server.url.replace('//', '//limited:secret@'))).toEqual([]);
  });

  it('but starts later than the gateway is waited for', async () => {
    const server = await startRedis();
    await server.kill();
    const opening = openStore({ kind: 'redis', url: server.url, prefix: 'test' });
    await server.restart();
    const store = await opening;
    onTestFinished(() => store.close());
    expect(await store.health()).toMatchObject({ ok: true });
  });

  it('but never starts is given up, with the reason', async () => {
    const server = await startRedis();
    await server.kill();
    const location = { url: server.url };
    const options = { location, prefix: 'test', lockNodes: [], replicas: 0, connectTimeoutMs: 300 };
    const opening = RedisStore.open({ ...options, ...LONG, clock: systemClock });
    await expect(opening).rejects.toThrow(StoreUnavailable);
    await expect(opening).rejects.toThrow(/redis cannot be reached: .*ECONNREFUSED/);
  });
});
