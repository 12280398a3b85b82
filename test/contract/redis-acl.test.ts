import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { expect, it, onTestFinished } from 'vitest';
import { RateLimiter } from '../../src/gateway/rate-limiter.ts';
import { openRedis } from '../../src/ledger/open-store.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { RedisCopyRegister } from '../../src/store/redis/copy-register.ts';
import { storeOptions } from '../../src/store/store-options.ts';
import { StoreClosed } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { LONG, openRedisStore } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

const RUNBOOK = readFileSync(new URL('../../docs/operations.md', import.meta.url), 'utf8');

/** The rules for the user in docs/operations.md, with the test's password. */
function documentedRules(): string[] {
  const [, line = ''] = /^ACL SETUSER ((?:.* \\\n)*.*)$/m.exec(RUNBOOK) ?? [];
  return line
    .replaceAll(/ \\\n\s*/g, ' ')
    .replace('>PASSWORD', '>test-password')
    .split(' ');
}

const words = (command: string) => command.split(' ') as [string, ...string[]];

it('the documented user can do all that the store needs, and can neither flush nor read other keys', async () => {
  const server = await startRedis();
  const [name = '', ...rules] = documentedRules();
  await server.admin.call('ACL', 'SETUSER', name, ...rules);
  const url = `redis://${name}:test-password@127.0.0.1:${server.port}`;
  const { timeoutMs, ...lifetimes } = { ...LONG, leaseMs: 50 };
  const store = await openRedisStore({
    ...{ gatewayId: 'gateway-1', lifetimes, timeoutMs, connectTimeoutMs: 5000, clock: systemClock },
    ...{ location: { url }, prefix: 'oncegate', lockNodes: [], replicas: 0 },
  });
  onTestFinished(() => store.close());
  expect(await store.health()).toEqual({ ok: true, detail: 'redis', warnings: [] });
  const completed = await bring(store, 'completed');
  expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
  expect(await store.peek(completed)).toEqual(replayOf(paid(), completed));
  const executing = await bring(store, 'executing');
  expect(await store.renew(executing)).not.toBe('stale');
  await until(async () => (await store.start(duplicateOf(executing))).kind === 'in_doubt');
  expect(await store.takeBack(await bring(store, 'executing'))).toBe('ok');
  const doubtful = await bring(store, 'in_doubt');
  const successor = duplicateOf(doubtful);
  expect(await store.restart(successor)).toBe('ok');
  expect(await store.leaveInDoubt(successor)).toBe('ok');
  const { records } = await store.list({ inDoubt: true, limit: 100 });
  expect(records.map(({ recordId }) => recordId)).toContain(doubtful.recordId);
  await store.countDoubts();
  const { operations } = await store.countDoubts();
  expect(operations.get('withdraw')?.inDoubt).toBe(records.length);
  const note = { by: 'ada', reason: 'in the books' };
  expect(await store.resolve(doubtful.recordId, successor.token, { as: 'released' }, note)).toBe('ok');
  expect(await store.audit(doubtful.recordId)).toMatchObject([note]);
  const { resolutions } = await store.countDoubts();
  expect(resolutions).toEqual([{ as: 'released', by: 'operator', number: 1 }]);
  expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  const identity = await store.visit('protect');
  expect(await store.readIdentity('protect')).toEqual(identity);

  const counting = await openRedis({ ...storeOptions.parse({ kind: 'redis', url }) }, 5000);
  const fallbacks: string[] = [];
  const limiter = new RateLimiter({
    ...{ clock: systemClock, redis: counting, prefix: 'oncegate' },
    emit: emitTo({ limits_unshared: ({ reason }) => fallbacks.push(reason) }),
  });
  onTestFinished(() => limiter.close());
  const rate = { requests: 1, windowMs: 60_000, burst: { requests: 1, windowMs: 120_000 } };
  const waits = [];
  for (let i = 0; i < 3; i++) waits.push(await limiter.take('M-1', rate));
  expect(waits).toEqual([undefined, undefined, expect.any(Number)]);
  expect(fallbacks).toEqual([]);

  const same = new Redis(url, { lazyConnect: true });
  onTestFinished(() => same.disconnect());
  await expect(same.flushall()).rejects.toThrow('NOPERM');
  await expect(same.flushdb()).rejects.toThrow('NOPERM');
  await expect(same.config('SET', 'appendonly', 'no')).rejects.toThrow('NOPERM');
  await expect(same.set('elsewhere', '1')).rejects.toThrow('NOPERM');
  await expect(same.get('elsewhere')).rejects.toThrow('NOPERM');
  await expect(same.keys('*')).rejects.toThrow('NOPERM');
  for (const command of [
    'CLIENT PAUSE 1',
    'CLIENT KILL TYPE replica',
    'CLIENT NO-EVICT on',
    'CLIENT UNBLOCK 1',
  ])
    await expect(same.call(...words(command)), command).rejects.toThrow('NOPERM');
  // Of a cluster it may read the slots, and neither move them nor make a replica the master.
  for (const command of [
    'RESET',
    'FLUSHSLOTS',
    'FAILOVER TAKEOVER',
    'FORGET x',
    'MEET 127.0.0.1 1',
    'SETSLOT 1 STABLE',
  ])
    await expect(same.call(...words(`CLUSTER ${command}`)), command).rejects.toThrow('NOPERM');
  for (const command of ['SLOTS', 'SHARDS', 'INFO', 'NODES'])
    await expect(same.call(...words(`CLUSTER ${command}`)), command).rejects.toThrow(
      'cluster support disabled',
    );

  // What the runbook adds for a copy.
  const [, more = ''] = /`ACL SETUSER oncegate ((?:\+\w+ ?)+)`/.exec(RUNBOOK) ?? [];
  await server.admin.call('ACL', 'SETUSER', name, ...more.split(' '));
  const copying = await RedisCopyRegister.open({
    ...{ gatewayId: 'copy', timeoutMs, connectTimeoutMs: 5000, clock: systemClock },
    ...{ location: { url }, prefix: 'oncegate', lockNodes: [], replicas: 0 },
  });
  onTestFinished(() => copying.close());
  const scanned = [];
  for await (const page of copying.scan()) scanned.push(...page);
  expect(scanned).toContainEqual({ id: completed.recordId, kind: 'record' });
  await copying.putAudit(completed.recordId, await copying.register.audit(doubtful.recordId));
  expect(await store.audit(completed.recordId)).toMatchObject([note]);
  const names = { copyId: 'copy', runId: 'run', source: { id: 'ab', count: 1 } };
  expect(await copying.changeCopyProgress({ epoch: 1, state: 'closing', ...names })).toBe(true);
  expect(await copying.servers()).not.toBe('');
  await expect(store.start(newRequest())).rejects.toThrow(StoreClosed);
});
