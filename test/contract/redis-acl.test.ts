import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { expect, it, onTestFinished } from 'vitest';
import { RedisStore } from '../../src/idempotency/stores/redis/redis-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { LONG } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { bring } from './states.ts';

/** The user that docs/operations.md tells to make, with a password of the test's. */
function documentedUser(): string[] {
  const text = readFileSync(new URL('../../docs/operations.md', import.meta.url), 'utf8');
  const line = /^ACL SETUSER ((?:.* \\\n)*.*)$/m.exec(text)?.[1];
  if (!line) throw new Error('docs/operations.md names no user');
  return line
    .replaceAll(/ \\\n\s*/g, ' ')
    .replace('>PASSWORD', '>test-password')
    .split(' ');
}

it('the documented user can do all that the store needs, and can neither flush nor look elsewhere', async () => {
  const server = await startRedis();
  const [name = '', ...rules] = documentedUser();
  await server.admin.call('ACL', 'SETUSER', name, ...rules);
  const url = `redis://${name}:test-password@127.0.0.1:${server.port}`;
  const open = async (times: { leaseMs?: number } = {}) => {
    const store = await RedisStore.open({
      ...{ ...LONG, ...times, connectTimeoutMs: 5000, clock: systemClock, location: { url } },
      ...{ prefix: 'oncegate', lockNodes: [], replicas: 0 },
    });
    onTestFinished(() => store.close());
    return store;
  };
  const store = await open({ leaseMs: 50 });
  expect((await store.health()).warnings).toEqual([]);
  const settled = await bring(store, 'settled');
  expect(await store.claim(duplicateOf(settled))).toEqual({ kind: 'settled', settlement: paid() });
  const executing = await bring(store, 'executing');
  expect(await store.renew(executing)).toBe('ok');
  const doubtful = await bring(store, 'in_doubt');
  expect(await store.release(await bring(store, 'claimed'))).toBe('ok');
  const heir = duplicateOf(doubtful);
  expect(await store.takeOver(heir, heir.fingerprint)).toBe('ok');
  expect(await store.markInDoubt(heir)).toBe('ok');
  const { records } = await store.list({ inDoubt: true, limit: 100 });
  expect(records.map(({ scope }) => scope)).toContain(doubtful.scope);
  const note = { by: 'ada', reason: 'in the books' };
  expect(await store.resolve(doubtful.scope, heir.token, { as: 'released' }, note)).toBe('ok');
  expect(await store.audit(doubtful.scope)).toMatchObject([note]);
  expect(await store.claim(newRequest())).toMatchObject({ kind: 'claimed' });

  const same = new Redis(url, { lazyConnect: true });
  onTestFinished(() => same.disconnect());
  await expect(same.flushall()).rejects.toThrow('NOPERM');
  await expect(same.flushdb()).rejects.toThrow('NOPERM');
  await expect(same.config('SET', 'appendonly', 'no')).rejects.toThrow('NOPERM');
  await expect(same.set('elsewhere', '1')).rejects.toThrow('NOPERM');
  await expect(same.get('elsewhere')).rejects.toThrow('NOPERM');
  await expect(same.keys('*')).rejects.toThrow('NOPERM');
});
