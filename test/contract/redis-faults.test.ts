import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { describe, expect, it } from 'vitest';
import { Outages } from '../../src/ledger/outages.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { createClient } from '../../src/store/redis/client.ts';
import { StoreUnavailable } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { openStore, type StoreTimes } from '../support/open-store.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

/** The time limit of a command, where a test waits for it. Elsewhere it is longer than a loaded machine needs. */
const TIMEOUT_MS = 1000;
const SHORT = { timeoutMs: TIMEOUT_MS };

/** A server for one test, and a store. */
async function withRedis(times: Partial<StoreTimes> = {}) {
  const server = await startRedis();
  const place = { kind: 'redis', url: server.url, prefix: 'test' } as const;
  const store = await openStore(place, times);
  // These calls load the scripts into the server.
  for (const write of ['complete', 'release'] as const)
    await store[write](await bring(store, 'executing'), paid());
  const dispose = async () => {
    await store.close();
    await server.stop();
  };
  return { server, store, [Symbol.asyncDispose]: dispose };
}

/** Repeats a write until it is answered, as the engine does. */
const untilAnswered = async <T>(write: () => Promise<T>) => await until(() => write().catch(() => undefined));

describe.concurrent('while redis is frozen', () => {
  it('each call fails at its time limit', async () => {
    await using redis = await withRedis(SHORT);
    const { server, store } = redis;
    const owner = await bring(store, 'executing');
    server.freeze();
    const calls = [
      () => store.start(newRequest()),
      () => store.peek(owner),
      () => store.restart(duplicateOf(owner)),
      () => store.renew(owner),
      () => store.complete(owner, paid()),
      () => store.release(owner),
      () => store.leaveInDoubt(owner),
      () => store.get(owner.recordId),
    ];
    const startedMs = performance.now();
    const answers = await Promise.all(calls.map((call) => call().catch((error: unknown) => error)));
    const tookMs = performance.now() - startedMs;
    expect(answers.map((answer) => answer instanceof StoreUnavailable)).toEqual(calls.map(() => true));
    expect(answers[0]).toMatchObject({ maybeWritten: true });
    expect(tookMs).toBeGreaterThanOrEqual(TIMEOUT_MS - 5);
    expect(tookMs).toBeLessThan(4 * TIMEOUT_MS);
    const detail = `redis: no answer within ${TIMEOUT_MS} ms`;
    expect(await store.health()).toMatchObject({ ok: false, detail });
    server.thaw();
    await until(async () => (await store.health()).ok);
  });

  it('a start and its release are both executed later, and leave the record absent', async () => {
    await using redis = await withRedis(SHORT);
    const { server, store } = redis;
    const owner = newRequest();
    server.freeze();
    await expect(store.start(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.takeBack(owner)).rejects.toThrow(StoreUnavailable);
    server.thaw();
    expect(await untilAnswered(() => store.takeBack(owner))).toBe('stale');
    expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'started' });
  });

  it('unsent commands are bounded: above the limit, writes are refused as never sent', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const owner = await bring(store, 'executing');
    const body = Buffer.alloc(1024 * 1024);
    const large = { kind: 'response' as const, response: { status: 200, headers: [], body } };
    server.freeze();
    const refused: unknown[] = [];
    for (let sent = 0; sent < 60 && refused.length === 0; sent++) {
      const failure = await Promise.race([
        store.complete(owner, large).catch((error) => error),
        setImmediate(),
      ]);
      if (failure) refused.push(failure);
    }
    expect(refused).toMatchObject([{ name: 'StoreUnavailable', maybeWritten: false }]);
    server.thaw();
    expect(await untilAnswered(() => store.complete(owner, large))).toBe('ok');
  });
});

/** Sets a memory limit that is already exceeded. */
const outOfMemory = (server: RedisServer) => server.admin.config('SET', 'maxmemory', '1');

describe.concurrent('when redis refuses writes', () => {
  it.each<[string, (server: RedisServer) => Promise<unknown>]>([
    ['OOM', outOfMemory],
    ['READONLY', (server) => server.admin.replicaof('127.0.0.1', '1')],
    ['MISCONF', failingDisk],
  ])('with %s the store is not ready, nothing starts, and a peek answers replays', async (code, refuse) => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const completed = await bring(store, 'completed');
    const [executing, doubtful] = [await bring(store, 'executing'), await bring(store, 'in_doubt')];
    await refuse(server);
    expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining(code) });
    const refused = [store.start(newRequest()), store.start(duplicateOf(completed))];
    for (const start of refused) {
      const failure = await start.catch((error: unknown) => error);
      expect(failure).toMatchObject({ name: 'StoreUnavailable', maybeWritten: false });
    }
    expect(await store.peek(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    expect(await store.peek(duplicateOf(executing))).toEqual({ kind: 'in_flight' });
    expect(await store.peek(duplicateOf(doubtful))).toMatchObject({ kind: 'in_doubt' });
    const restart = await store.restart(duplicateOf(doubtful)).catch((error: unknown) => error);
    // A write over a record needs no more memory.
    expect(restart).toEqual(code === 'OOM' ? 'ok' : expect.objectContaining({ maybeWritten: false }));
    expect(await store.peek(newRequest())).toEqual({ kind: 'absent' });
    const told: string[] = [];
    const emit = emitTo({
      store_lost: ({ reason }) => told.push(`lost: ${reason}`),
      store_refuses: ({ reason }) => told.push(reason),
    });
    const outages = new Outages(store, systemClock, emit);
    outages.failed(0);
    await until(() => told.length > 0);
    expect(told).toEqual([expect.stringMatching(new RegExp(`^redis: ${code} `))]);
    outages.close();
  });

  it('because it is out of memory, results, releases and doubts are still stored', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const executing = () => bring(store, 'executing');
    const [first, second, third, lost] = [
      await executing(),
      await executing(),
      await executing(),
      newRequest(),
    ];
    await outOfMemory(server);
    expect(await store.complete(first, paid())).toBe('ok');
    expect(await store.release(second)).toBe('ok');
    expect(await store.leaveInDoubt(third)).toBe('ok');
    expect(await store.takeBack(lost)).toBe('stale');
    expect(await store.complete(lost, paid('no record'))).toBe('ok');
    expect(await store.peek(duplicateOf(first))).toEqual(replayOf(paid(), first));
    await server.admin.config('SET', 'maxmemory', '0');
    expect(await store.health()).toMatchObject({ ok: true });
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  });
});

/** Makes snapshots fail, by a folder with the name of the snapshot file. */
async function failingDisk(server: RedisServer): Promise<void> {
  mkdirSync(join(server.dir, 'dump.rdb'));
  await server.admin.config('SET', 'save', '3600 1');
  await server.admin.bgsave();
  await until(async () => /rdb_last_bgsave_status:err/.test(await server.admin.info('persistence')));
}

describe.concurrent('when redis is killed', () => {
  it('under load, every write that was answered is there when it is back', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const answered = { started: [] as string[], completed: [] as string[] };
    const requests = new Map<string, ReturnType<typeof newRequest>>();
    const lane = async () => {
      for (;;) {
        const request = newRequest();
        requests.set(request.key, request);
        await store.start(request);
        answered.started.push(request.key);
        if (answered.started.length % 2) continue;
        await store.complete(request, paid(request.key));
        answered.completed.push(request.key);
      }
    };
    const lanes = Array.from({ length: 16 }, () => lane().catch((error: unknown) => error));
    await until(() => answered.completed.length > 100);
    await server.kill();
    for (const failure of await Promise.all(lanes)) expect(failure).toBeInstanceOf(StoreUnavailable);
    await server.restart();
    await until(async () => (await store.health()).ok);
    const states = new Map<string, string | undefined>();
    for (const [key, { recordId }] of requests) states.set(key, (await store.get(recordId))?.state);
    const lost = (keys: string[], kept: string[]) =>
      keys.filter((key) => !kept.includes(states.get(key) ?? ''));
    expect(lost(answered.started, ['executing', 'completed'])).toEqual([]);
    expect(lost(answered.completed, ['completed'])).toEqual([]);
  });
});

describe('the check says why redis cannot be used', () => {
  const detailOf = async ({ store }: Pick<Awaited<ReturnType<typeof withRedis>>, 'store'>) =>
    (await store.health()).detail;

  it('that is gone, and that is loading its file', async () => {
    await using redis = await withRedis(SHORT);
    const { server } = redis;
    const keys = Array.from({ length: 4000 }, (_, at) => [`filler-${at}`, 'x'.repeat(100)]);
    await server.admin.mset(...keys.flat());
    await server.admin.bgrewriteaof();
    await until(async () => (await server.admin.info('persistence')).includes('aof_rewrite_in_progress:0'));
    await server.kill();
    const refused = `redis: not connected: connect ECONNREFUSED 127.0.0.1:${server.port}`;
    await until(async () => (await detailOf(redis)) === refused);
    const slowly = ['--key-load-delay', '500', '--loading-process-events-interval-bytes', '1024'];
    const restarted = server.restart(slowly);
    const loading = 'redis: connected, but not ready: it may still be loading its file';
    await until(async () => (await detailOf(redis)) === loading);
    // Quickly from here on.
    const hurry = new Redis(server.port, { enableReadyCheck: false });
    await hurry.config('SET', 'key-load-delay', '0');
    hurry.disconnect();
    await restarted;
    await until(async () => (await redis.store.health()).ok);
  });

  it('for each attempt to connect, if there is no route', async () => {
    // The system refuses a connection to all machines at once.
    const client = createClient({ url: 'redis://255.255.255.255:6379' }, TIMEOUT_MS);
    const reasons: string[] = [];
    client.on('error', ({ message }) => reasons.push(message));
    client.connect().catch(() => {});
    await until(async () => reasons.length > 2);
    client.disconnect();
    for (const reason of reasons) expect(reason).toMatch(/^connect E\w+ 255\.255\.255\.255:6379/);
  });
});
