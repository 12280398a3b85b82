import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { expect, it, onTestFinished } from 'vitest';
import type { RedisKeyList } from '../../src/auth/redis/key-list.ts';
import { editRedisKeys } from '../../src/auth/redis/redis-key-editor.ts';
import { RateLimiter } from '../../src/gateway/rate-limiter.ts';
import { storeOptions } from '../../src/idempotency/options.ts';
import { openRedis } from '../../src/idempotency/stores/open-store.ts';
import { RedisStore } from '../../src/idempotency/stores/redis/redis-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { addKey, openList, openSource, PEPPER, redisKeys } from '../support/key-sources.ts';
import { LONG } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

/** The rules for users in docs/operations.md, with the test's password. */
function documentedRules(): string[][] {
  const text = readFileSync(new URL('../../docs/operations.md', import.meta.url), 'utf8');
  const lines = [...text.matchAll(/^ACL SETUSER ((?:.* \\\n)*.*)$/gm)].map(([, line = '']) => line);
  return lines.map((line) =>
    line
      .replaceAll(/ \\\n\s*/g, ' ')
      .replace('>PASSWORD', '>test-password')
      // Blanks separate rules, except in parentheses.
      .split(/ (?![^(]*\))/),
  );
}

it('the documented user can do all that the store needs, and can neither flush nor read other keys', async () => {
  const server = await startRedis();
  const [[name = '', ...rules] = []] = documentedRules();
  await server.admin.call('ACL', 'SETUSER', name, ...rules);
  const url = `redis://${name}:test-password@127.0.0.1:${server.port}`;
  const { timeoutMs, ...lifetimes } = { ...LONG, leaseMs: 50 };
  const store = await RedisStore.open({
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
  expect(await store.release(await bring(store, 'executing'), { voidToken: true })).toBe('ok');
  const doubtful = await bring(store, 'in_doubt');
  const successor = duplicateOf(doubtful);
  expect(await store.restart(successor)).toBe('ok');
  expect(await store.markInDoubt(successor)).toBe('ok');
  const { records } = await store.list({ inDoubt: true, limit: 100 });
  expect(records.map(({ scope }) => scope)).toContain(doubtful.scope);
  await store.countDoubts({ everyMs: 1000 });
  const { operations } = await store.countDoubts({ everyMs: 0 });
  expect(operations.get('withdraw')?.inDoubt).toBe(records.length);
  const note = { by: 'ada', reason: 'in the books' };
  expect(await store.resolve(doubtful.scope, successor.token, { as: 'released' }, note)).toBe('ok');
  expect(await store.audit(doubtful.scope)).toMatchObject([note]);
  const { resolutions } = await store.countDoubts({ everyMs: 0 });
  expect(resolutions).toEqual([{ as: 'released', by: 'operator', number: 1 }]);
  expect(await store.purge(completed.scope, completed.token, note)).toBe('ok');
  expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  const mark = await store.mark('protect', '1.0.0');
  expect(await store.readMark('protect')).toEqual(mark);

  const counting = await openRedis({ ...storeOptions.parse({ kind: 'redis', url }) }, 5000);
  const shared: boolean[] = [];
  const limiter = new RateLimiter({
    ...{ clock: systemClock, redis: counting, prefix: 'oncegate', workers: 1 },
    onShared: (isShared) => shared.push(isShared),
  });
  onTestFinished(() => limiter.close());
  const rate = { requests: 1, windowMs: 60_000, burst: { requests: 1, windowMs: 120_000 } };
  const waits = [];
  for (let i = 0; i < 3; i++) waits.push(await limiter.take('M-1', rate));
  expect(waits).toEqual([undefined, undefined, expect.any(Number)]);
  expect(shared).toEqual([]);

  const same = new Redis(url, { lazyConnect: true });
  onTestFinished(() => same.disconnect());
  await expect(same.flushall()).rejects.toThrow('NOPERM');
  await expect(same.flushdb()).rejects.toThrow('NOPERM');
  await expect(same.config('SET', 'appendonly', 'no')).rejects.toThrow('NOPERM');
  await expect(same.set('elsewhere', '1')).rejects.toThrow('NOPERM');
  await expect(same.get('elsewhere')).rejects.toThrow('NOPERM');
  await expect(same.keys('*')).rejects.toThrow('NOPERM');
});

it('the documented users can use and change secret keys, and a gateway cannot change them', async () => {
  const server = await startRedis();
  const rules = documentedRules();
  expect(rules.map(([name]) => name)).toEqual(['oncegate', 'oncegate', 'oncegate-keys']);
  for (const rule of rules) await server.admin.call('ACL', 'SETUSER', ...rule);
  const keysOf = (user: string) =>
    redisKeys({ url: `redis://${user}:test-password@127.0.0.1:${server.port}` });
  const operator = await openList(keysOf('oncegate-keys'));
  const edit = (list: RedisKeyList, id: string) =>
    editRedisKeys(list, (editor) => addKey(editor, 'M-A', id, `secret-of-key-${id}-0123`), PEPPER);
  await edit(operator, 'a');
  const { source, reloads } = await openSource(keysOf('oncegate'));
  await edit(operator, 'b');
  const key = await until(() => source.find('secret-of-key-b-0123'));
  source.noteUse?.(key);
  await source.reload();
  expect(reloads).toMatchObject([{ ok: true }, { ok: true }]);
  await source.close();
  expect(await operator.lastUses()).toEqual(new Map([['M-A b', expect.stringMatching(/^\d{4}-/)]]));

  await expect(edit(await openList(keysOf('oncegate')), 'c')).rejects.toThrow('user executing the script');
  expect(await operator.read()).toMatchObject({ changes: 2 });
  const same = new Redis(keysOf('oncegate-keys').url ?? '', { lazyConnect: true });
  onTestFinished(() => same.disconnect());
  await expect(same.hset('oncegate:v2:record', 'a', '1')).rejects.toThrow('NOPERM');
});
