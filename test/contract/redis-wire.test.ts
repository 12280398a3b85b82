import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { type ClaimRequest, type Store, StoreUnavailable } from '../../src/idempotency/store.ts';
import { openStore } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const server = await startRedis();
const wire = await startProxy(server.port);

/** Longer than a reply's delay, so that the delay alone fails nothing. */
const TIMEOUT_MS = 500;
const DELAY_MS = 60;

/** The one on the wire that breaks, and one beside it that sees what became of it. */
let store: Store;
let witness: Store;
beforeEach(async () => {
  const prefix = randomUUID();
  store = await openStore({ kind: 'redis', url: wire.url, prefix }, { timeoutMs: TIMEOUT_MS });
  witness = await openStore({ kind: 'redis', url: server.url, prefix });
  onTestFinished(async () => {
    wire.refuse(false);
    wire.swallowReplies(false);
    wire.delayReplies(0);
    await store.close();
    await witness.close();
  });
  // The server knows all scripts from here on.
  const warm = await bring(store, 'executing');
  await store.renew(warm);
  await store.settle(warm, paid());
  await bring(store, 'in_doubt');
});

const stateOf = async ({ scope }: ClaimRequest) => (await witness.get(scope))?.state;
const healed = async () => await until(async () => (await store.health()).ok);

describe('when the reply is lost on the wire', () => {
  it('a claim stands, and the same claim again is answered so', async () => {
    const owner = newRequest();
    wire.swallowReplies(true);
    await expect(store.claim(owner)).rejects.toThrow(StoreUnavailable);
    expect(await stateOf(owner)).toBe('claimed');
    wire.swallowReplies(false);
    await healed();
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    expect(await store.release(owner)).toBe('ok');
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'claimed', tookOver: false });
  });

  it.each([
    ['begin', 'claimed', 'executing', 'ok'],
    ['settle', 'executing', 'settled', 'ok'],
    ['settle', 'in_doubt', 'settled', 'ok'],
    ['markInDoubt', 'executing', 'in_doubt', 'ok'],
    ['release', 'claimed', undefined, 'stale'],
    ['release', 'executing', undefined, 'stale'],
  ] as const)(
    '%s of a scope that is %s makes it %s, and again is %s',
    async (write, from, becomes, again) => {
      const owner = await bring(store, from);
      wire.swallowReplies(true);
      await expect(store[write](owner, paid('first'))).rejects.toThrow(StoreUnavailable);
      expect(await stateOf(owner)).toBe(becomes);
      wire.swallowReplies(false);
      await healed();
      expect(await store[write](owner, paid('first'))).toBe(again);
      expect(await stateOf(owner)).toBe(becomes);
    },
  );

  it('an answer that comes too late is not taken for that to another command', async () => {
    const [owner, settled] = [await bring(store, 'claimed'), await bring(store, 'settled')];
    wire.delayReplies(TIMEOUT_MS + 200);
    const late = [store.claim(newRequest()), store.begin(owner), store.get(settled.scope)];
    for (const call of late) await expect(call).rejects.toThrow(StoreUnavailable);
    wire.delayReplies(0);
    expect(await store.get(newRequest().scope)).toBeUndefined();
    expect(await store.claim(duplicateOf(settled))).toEqual({ kind: 'settled', settlement: paid() });
    expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    expect(await store.get(owner.scope)).toMatchObject({ state: 'executing' });
  });
});

describe('when the connection is cut', () => {
  it.each([
    ['claim', 'absent', 'set', 1],
    ['begin', 'claimed', 'setrange', 3],
    ['settle', 'executing', 'set', 1],
    ['markInDoubt', 'executing', 'setrange', 2],
    ['release', 'claimed', 'del', 1],
  ] as const)('in mid-%s, it is executed once', async (write, from, command, calls) => {
    const owner = from === 'absent' ? newRequest() : await bring(store, from);
    const before = await server.commandCount(command);
    wire.delayReplies(10_000);
    const call = write === 'claim' ? store.claim(owner) : store[write](owner, paid());
    const failure = call.catch((error: unknown) => error);
    await until(async () => (await server.commandCount(command)) > before);
    wire.cut();
    expect(await failure).toBeInstanceOf(StoreUnavailable);
    wire.delayReplies(0);
    await healed();
    await store.get(owner.scope);
    expect((await server.commandCount(command)) - before).toBe(calls);
  });

  it('and refused for a while, calls fail at once, and work when it is back', async () => {
    const owner = await bring(store, 'executing');
    wire.refuse(true);
    wire.cut();
    await until(async () => !(await store.health()).ok);
    const startedMs = performance.now();
    await expect(store.settle(owner, paid())).rejects.toThrow(StoreUnavailable);
    expect(performance.now() - startedMs).toBeLessThan(TIMEOUT_MS / 2);
    wire.refuse(false);
    await healed();
    expect(await store.settle(owner, paid())).toBe('ok');
    expect(await stateOf(owner)).toBe('settled');
  });

  it('under a settlement, the owner goes on showing that it is alive', async () => {
    const leaseMs = 800;
    const prefix = randomUUID();
    const owning = await openStore(
      { kind: 'redis', url: wire.url, prefix },
      { leaseMs, timeoutMs: TIMEOUT_MS },
    );
    const asking = await openStore({ kind: 'redis', url: server.url, prefix }, { leaseMs });
    onTestFinished(async () => void (await Promise.all([owning.close(), asking.close()])));
    const owner = await bring(owning, 'executing');
    wire.refuse(true);
    wire.cut();
    await expect(owning.settle(owner, paid())).rejects.toThrow(StoreUnavailable);
    wire.refuse(false);
    await until(async () => (await owning.health()).ok);
    const silent = await bring(asking, 'executing');
    await until(async () => {
      expect(await owning.renew(owner)).not.toBe('stale');
      await sleep(leaseMs / 20);
      expect(await asking.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      return (await asking.claim(duplicateOf(silent))).kind === 'in_doubt';
    });
  });
});

describe('round trips', () => {
  const counted = async (work: () => Promise<unknown>) => {
    const before = wire.roundTrips;
    await work();
    return wire.roundTrips - before;
  };

  it('a replay costs one; a first execution two before it may send, and one after', async () => {
    const [owner, settled] = [newRequest(), await bring(store, 'settled')];
    wire.delayReplies(DELAY_MS);
    expect(await counted(() => store.claim(duplicateOf(settled)))).toBe(1);
    expect(await counted(() => store.claim(owner))).toBe(1);
    expect(await counted(() => store.begin(owner))).toBe(1);
    expect(await counted(() => store.settle(owner, paid()))).toBe(1);
  });

  it('a replay is one command for the server', async () => {
    const settled = await bring(store, 'settled');
    await witness.get(settled.scope);
    const commands = async () =>
      Number(/total_commands_processed:(\d+)/.exec(await server.admin.info('stats'))?.[1]);
    const before = await commands();
    const asking = (await commands()) - before;
    await store.claim(duplicateOf(settled));
    expect((await commands()) - before - 2 * asking).toBe(1);
  });
});
