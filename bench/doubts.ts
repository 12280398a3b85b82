/**
 * What counting many keys in doubt costs payouts on one Redis: `node bench/doubts.ts [KEYS]` (default a million). The process
 * that counts makes payouts of two durable writes each at the same time, as a gateway does. Prints a Markdown table. It takes a
 * minute and needs an otherwise idle machine.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { fingerprintOf, newToken, scopeOf } from '../src/idempotency/fingerprint.ts';
import type { Execution, Store } from '../src/idempotency/store.ts';
import { recordKeyOf } from '../src/idempotency/stores/redis/commands.ts';
import { openIndexOf } from '../src/idempotency/stores/redis/open-index.ts';
import { RedisStore } from '../src/idempotency/stores/redis/redis-store.ts';
import { ResponseCipher } from '../src/idempotency/stores/response-cipher.ts';
import { systemClock } from '../src/kernel/clock.ts';
import { launchRedis, type RedisServer } from '../test/support/redis-process.ts';

const PREFIX = 'oncegate';
const AT_ONCE = 4;
/** Between two payouts of each of them, so that neither Redis nor this process is busy without the count. */
const PAUSE_MS = 2;
const ROUNDS = 3;
const DAY_MS = 86_400_000;
const BODY = Buffer.from(JSON.stringify({ success: true, data: { note: 'x'.repeat(250) } }));

/** Copies the record of a key in doubt, and its entry in the index. KEYS: record, index. ARGV: how many, a seed, what names of records begin with. */
const COPY = `
local record, ms, index = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), KEYS[2]
for i = 1, tonumber(ARGV[1]) do
  local scope = redis.sha1hex(ARGV[2] .. i) .. string.sub(redis.sha1hex('' .. i), 1, 24)
  redis.call('SET', ARGV[3] .. scope .. '}', record, 'PX', ms)
  redis.call('ZADD', index, 0, scope)
end`;

function newExecution(): Execution {
  const key = randomUUID();
  return {
    ...{ scope: scopeOf('M-1', key), token: newToken(), merchant: 'M-1', operation: 'withdraw', key },
    ...{ fingerprint: fingerprintOf('POST', '/v1/index.php', BODY), requestId: randomUUID() },
  };
}

const percentile = (sorted: readonly number[], part: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;

/** Payouts until `done`. @returns how long each write took, in milliseconds, sorted */
async function pay(store: Store, done: Promise<unknown>): Promise<number[]> {
  const writes: number[] = [];
  let isDone = false;
  void done.finally(() => {
    isDone = true;
  });
  const timed = async (write: Promise<unknown>) => {
    const startedMs = performance.now();
    await write;
    writes.push(performance.now() - startedMs);
  };
  const response = { status: 201, headers: ['Content-Type', 'application/json'], body: BODY };
  await Promise.all(
    Array.from({ length: AT_ONCE }, async () => {
      while (!isDone) {
        const execution = newExecution();
        await timed(store.start(execution));
        await timed(store.complete(execution, { kind: 'response', response }));
        await sleep(PAUSE_MS);
      }
    }),
  );
  return writes.sort((a, b) => a - b);
}

async function fill(redis: RedisServer, store: Store, keys: number): Promise<void> {
  const execution = newExecution();
  await store.start(execution);
  await store.markInDoubt(execution);
  const [record, index] = [recordKeyOf(PREFIX, execution.scope), openIndexOf(PREFIX)];
  const before = recordKeyOf(PREFIX, '').slice(0, -1);
  const step = 10_000;
  for (let at = 0; at < keys; at += step)
    await redis.admin.eval(COPY, 2, record, index, Math.min(step, keys - at), randomUUID(), before);
}

async function cpuSeconds(redis: RedisServer): Promise<number> {
  const info = await redis.admin.info('cpu');
  return [...info.matchAll(/^used_cpu_(?:user|sys):(.+)$/gm)].reduce(
    (sum, [, seconds]) => sum + Number(seconds),
    0,
  );
}

async function scriptsOf(redis: RedisServer): Promise<number> {
  return Number(/^cmdstat_evalsha:calls=(\d+)/m.exec(await redis.admin.info('commandstats'))?.[1] ?? 0);
}

async function bench(keys: number): Promise<void> {
  const redis = await launchRedis({ args: ['--appendfsync', 'everysec'] });
  const store = await RedisStore.open({
    ...{ location: { url: redis.url }, prefix: PREFIX, lockNodes: [], replicas: 0, connectTimeoutMs: 5000 },
    ...{ timeoutMs: 10_000, clock: systemClock, gatewayId: 'bench', cipher: new ResponseCipher(undefined) },
    lifetimes: { leaseMs: 10_000, retentionMs: DAY_MS, inDoubtRetentionMs: 30 * DAY_MS },
  });
  try {
    await fill(redis, store, keys);
    process.stdout.write(
      '| keys in doubt | count s | writes | p50 ms | p99 ms | max ms |\n|---:|---:|---:|---:|---:|---:|\n',
    );
    const line = (counted: number, s: string, writes: readonly number[]) =>
      process.stdout.write(
        `| ${counted} | ${s} | ${writes.length} | ${[0.5, 0.99, 1].map((part) => percentile(writes, part).toFixed(2)).join(' | ')} |\n`,
      );
    for (let round = 0; round < ROUNDS; round++) {
      line(0, 'none', await pay(store, sleep(5000)));
      const startedMs = performance.now();
      const count = store.countDoubts({ everyMs: 0 });
      const writes = await pay(store, count);
      const counted = [...(await count).operations.values()].reduce((sum, { inDoubt }) => sum + inDoubt, 0);
      line(counted, ((performance.now() - startedMs) / 1000).toFixed(1), writes);
    }
    const [cpuBefore, scriptsBefore] = [await cpuSeconds(redis), await scriptsOf(redis)];
    await store.countDoubts({ everyMs: 0 });
    const [cpu, scripts] = [(await cpuSeconds(redis)) - cpuBefore, (await scriptsOf(redis)) - scriptsBefore];
    process.stdout.write(
      `\nA count without payouts: ${scripts} scripts, ${cpu.toFixed(1)} s of Redis' CPU time, ${((cpu / scripts) * 1000).toFixed(2)} ms each.\n`,
    );
  } finally {
    await store.close();
    await redis.stop();
  }
}

await bench(Number(process.argv[2] ?? 1_000_000));
