import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { openStore } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const TIMEOUT_MS = 200;

/** A server of the test's own, and a store with a short temper on it. */
async function withRedis(leaseMs = 60_000) {
  const server = await startRedis();
  const place = { kind: 'redis', url: server.url, prefix: 'test' } as const;
  const store = await openStore(place, { leaseMs, timeoutMs: TIMEOUT_MS });
  const dispose = async () => {
    await store.close();
    await server.stop();
  };
  return { server, store, [Symbol.asyncDispose]: dispose };
}

/** Repeats a write until it is answered, as the engine does. */
const untilAnswered = async <T>(write: () => Promise<T>) => await until(() => write().catch(() => undefined));

describe.concurrent('while redis is frozen', () => {
  it('each call gives up at its time limit', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const owner = await bring(store, 'executing');
    server.freeze();
    const calls = [
      () => store.claim(newRequest()),
      () => store.begin(owner),
      () => store.renew(owner),
      () => store.settle(owner, paid()),
      () => store.release(owner),
      () => store.markInDoubt(owner),
      () => store.get(owner.scope),
    ];
    const startedMs = performance.now();
    const answers = await Promise.all(calls.map((call) => call().catch((error: unknown) => error)));
    const tookMs = performance.now() - startedMs;
    expect(answers.map((answer) => answer instanceof StoreUnavailable)).toEqual(calls.map(() => true));
    expect(tookMs).toBeGreaterThanOrEqual(TIMEOUT_MS - 5);
    expect(tookMs).toBeLessThan(10 * TIMEOUT_MS);
    expect(await store.health()).toMatchObject({ ok: false });
    server.thaw();
    await until(async () => (await store.health()).ok);
  });

  it('a claim that was given up may stand afterwards: in flight first, then taken over', async () => {
    await using redis = await withRedis(800);
    const { server, store } = redis;
    const owner = newRequest();
    server.freeze();
    await expect(store.claim(owner)).rejects.toThrow(StoreUnavailable);
    server.thaw();
    const stands = await untilAnswered(() => store.get(owner.scope));
    expect(stands).toMatchObject({ state: 'claimed', token: owner.token });
    const heir = duplicateOf(owner);
    expect(await store.claim(heir)).toEqual({ kind: 'in_flight' });
    await until(async () => (await store.claim(heir)).kind === 'claimed');
    expect(await store.begin(owner)).toBe('stale');
    expect(await store.begin(heir)).toBe('ok');
  });

  it('a claim and its taking back are both executed later, and leave the scope free', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const owner = newRequest();
    server.freeze();
    await expect(store.claim(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.release(owner)).rejects.toThrow(StoreUnavailable);
    server.thaw();
    expect(await untilAnswered(() => store.release(owner))).toBe('stale');
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'claimed', tookOver: false });
  });

  it('a begin that was given up is executed later, and is taken back', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const owner = await bring(store, 'claimed');
    server.freeze();
    await expect(store.begin(owner)).rejects.toThrow(StoreUnavailable);
    server.thaw();
    expect(await untilAnswered(() => store.get(owner.scope))).toMatchObject({ state: 'executing' });
    expect(await store.release(owner)).toBe('ok');
    const next = duplicateOf(owner);
    expect(await store.claim(next)).toEqual({ kind: 'claimed', tookOver: false });
    expect(await store.begin(next)).toBe('ok');
  });

  it('a settlement that was given up is repeated until it is answered', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const owner = await bring(store, 'executing');
    server.freeze();
    await expect(store.settle(owner, paid('first'))).rejects.toThrow(StoreUnavailable);
    server.thaw();
    expect(await untilAnswered(() => store.settle(owner, paid('first')))).toBe('ok');
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement: paid('first') });
  });
});

describe.concurrent('when redis is killed', () => {
  it('calls fail at once, and all records are there when it is back', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const [claimed, executing, settled] = [
      await bring(store, 'claimed'),
      await bring(store, 'executing'),
      await bring(store, 'settled'),
    ];
    await server.kill();
    await expect(store.claim(duplicateOf(settled))).rejects.toThrow(StoreUnavailable);
    const startedMs = performance.now();
    await expect(store.claim(newRequest())).rejects.toThrow(StoreUnavailable);
    expect(performance.now() - startedMs).toBeLessThan(TIMEOUT_MS);
    await server.restart();
    const replay = await untilAnswered(() => store.claim(duplicateOf(settled)));
    expect(replay).toEqual({ kind: 'settled', settlement: paid() });
    expect(await store.claim(duplicateOf(claimed))).toEqual({ kind: 'in_flight' });
    expect(await store.begin(claimed)).toBe('ok');
    expect(await store.settle(executing, paid('late'))).toBe('ok');
  });

  it('under load, every write that was answered is there when it is back', async () => {
    await using redis = await withRedis();
    const { server, store } = redis;
    const answered = { claimed: [] as string[], begun: [] as string[], settled: [] as string[] };
    const requests = new Map<string, ReturnType<typeof newRequest>>();
    const lane = async () => {
      for (;;) {
        const request = newRequest();
        requests.set(request.key, request);
        await store.claim(request);
        answered.claimed.push(request.key);
        await store.begin(request);
        answered.begun.push(request.key);
        if (answered.begun.length % 2) continue;
        await store.settle(request, paid(request.key));
        answered.settled.push(request.key);
      }
    };
    const lanes = Array.from({ length: 16 }, () => lane().catch((error: unknown) => error));
    await until(() => answered.settled.length > 100);
    await server.kill();
    for (const failure of await Promise.all(lanes)) expect(failure).toBeInstanceOf(StoreUnavailable);
    await server.restart();
    await until(async () => (await store.health()).ok);
    const states = new Map<string, string | undefined>();
    for (const [key, { scope }] of requests) states.set(key, (await store.get(scope))?.state);
    const lost = (keys: string[], kept: string[]) =>
      keys.filter((key) => !kept.includes(states.get(key) ?? ''));
    expect(lost(answered.claimed, ['claimed', 'executing', 'settled'])).toEqual([]);
    expect(lost(answered.begun, ['executing', 'settled'])).toEqual([]);
    expect(lost(answered.settled, ['settled'])).toEqual([]);
  });
});
