import { randomBytes } from 'node:crypto';
import { Redis } from 'ioredis';
import { expect, it, onTestFinished } from 'vitest';
import { openStore } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';

const KEYS = 400;
/** While it loads, Redis serves its clients each time it has loaded this many bytes. */
const KEY_BYTES = 1024;
const WITHIN_MS = 1000;

/** Redis estimated that loading would take nine more seconds and needed one, but the client did not retry within the nine. */
it('a redis that has loaded its file is used at once, however long it expected to load', async () => {
  const server = await startRedis();
  onTestFinished(() => server.stop());
  const place = { kind: 'redis', url: server.url, prefix: 'test' } as const;
  const store = await openStore(place, { leaseMs: 60_000, timeoutMs: 200 });
  onTestFinished(() => store.close());
  const filling = server.admin.pipeline();
  for (let i = 0; i < KEYS; i++) filling.set(`large-${i}`, randomBytes(KEY_BYTES));
  await filling.exec();
  // Redis applies key-load-delay only to a file that AOF rewrite has written.
  await server.admin.bgrewriteaof();
  await until(async () => /aof_rewrite_in_progress:0/.test(await server.admin.info('persistence')));
  await server.kill();

  const slowly = ['--key-load-delay', '50000', '--loading-process-events-interval-bytes', `${KEY_BYTES}`];
  const started = server.start(slowly);
  const aside = new Redis(server.url, {
    enableReadyCheck: false,
    maxRetriesPerRequest: null,
    retryStrategy: () => 25,
  });
  aside.on('error', () => {});
  onTestFinished(() => aside.disconnect());
  const estimateS = async () => Number(/^loading_eta_seconds:(\d+)/m.exec(await aside.info())?.[1] ?? 0);
  await until(async () => (await estimateS().catch(() => 0)) > 3);
  // The store's client connects again now, and gets that estimate.
  const before = Math.max(...(await clientsOf(aside)).map(({ id }) => id));
  await aside.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
  const asking = async () =>
    (await clientsOf(aside)).filter(({ id, command }) => id > before && command !== 'NULL');
  // One is the store's client, the other the test's.
  await until(async () => (await asking()).length >= 2);
  await aside.config('SET', 'key-load-delay', '0');
  expect(await started).toBe(true);

  const startedMs = performance.now();
  const answer = await until(() => store.start(newRequest()).catch(() => undefined));
  expect(answer).toEqual({ kind: 'started' });
  expect(performance.now() - startedMs).toBeLessThan(WITHIN_MS);
});

async function clientsOf(redis: Redis): Promise<{ id: number; command: string | undefined }[]> {
  const lines = String(await redis.call('CLIENT', 'LIST'))
    .trim()
    .split('\n');
  return lines.map((line) => ({
    id: Number(/^id=(\d+)/.exec(line)?.[1]),
    command: / cmd=(\S+)/.exec(line)?.[1],
  }));
}
