import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { type ClaimRequest, StoreUnavailable } from '../../src/idempotency/store.ts';
import { openStore, type StoreTimes } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const TIMEOUT_MS = 400;

/** A redis behind a wire that breaks, a store on the wire, and a witness beside it that sees what became of it all. */
async function withWire(times: Partial<StoreTimes> = { timeoutMs: TIMEOUT_MS }) {
  const server = await startRedis();
  const wire = await startProxy(server.port);
  const place = { kind: 'redis', prefix: 'test' } as const;
  const store = await openStore({ ...place, url: wire.url }, times);
  const witness = await openStore({ ...place, url: server.url }, { ...times, timeoutMs: 10_000 });
  // The server knows all scripts from here on.
  for (const write of ['settle', 'markInDoubt', 'release'] as const) {
    const warm = await bring(witness, 'executing');
    await witness.renew(warm);
    await witness[write](warm, paid());
  }
  const stateOf = async ({ scope }: ClaimRequest) => (await witness.get(scope))?.state;
  const healed = async () => await until(async () => (await store.health()).ok);
  const dispose = async () => {
    await Promise.all([store.close(), witness.close()]);
    await wire.close();
    await server.stop();
  };
  return { server, wire, store, witness, stateOf, healed, [Symbol.asyncDispose]: dispose };
}

describe.concurrent('when a reply is lost on the wire', () => {
  it('a claim stands, and is released under its token', async () => {
    await using line = await withWire();
    const { wire, store, stateOf, healed } = line;
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
      await using line = await withWire();
      const { wire, store, stateOf, healed } = line;
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

  it('a takeover that comes late does not touch what has come to stand in the meantime', async () => {
    const leaseMs = 100;
    await using line = await withWire({ leaseMs });
    const { server, wire, store, witness } = line;
    const [owner, control] = [await bring(witness, 'claimed'), await bring(witness, 'claimed')];
    await until(async () => (await witness.claim(duplicateOf(control))).kind === 'claimed');
    const looks = await server.commandCount('exists');
    wire.delayReplies(300);
    const heir = store.claim(duplicateOf(owner));
    // It has seen an old claim that nobody holds a lease for; its takeover is still to be sent.
    await until(async () => (await server.commandCount('exists')) > looks);
    expect(await witness.begin(owner)).toBe('ok');
    expect(await witness.settle(owner, paid())).toBe('ok');
    const settled = await witness.get(owner.scope);
    expect(await heir).toEqual({ kind: 'settled', settlement: paid() });
    expect(await witness.get(owner.scope)).toEqual(settled);
  });

  it('an answer that comes too late is not taken for that to another command', async () => {
    await using line = await withWire();
    const { wire, store } = line;
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

describe.concurrent('when the connection is cut', () => {
  it.each([
    ['claim', 'absent', 'set', 1],
    ['begin', 'claimed', 'setrange', 3],
    ['settle', 'executing', 'set', 1],
    ['markInDoubt', 'executing', 'setrange', 3],
    ['release', 'claimed', 'del', 1],
  ] as const)('in mid-%s, it is executed once', async (write, from, command, calls) => {
    await using line = await withWire({});
    const { server, wire, store, healed } = line;
    const owner = from === 'absent' ? newRequest() : await bring(store, from);
    const before = await server.commandCount(command);
    wire.delayReplies(10_000);
    const call = write === 'claim' ? store.claim(owner) : store[write](owner, paid());
    const failure = call.catch((error: unknown) => error);
    await until(async () => (await server.commandCount(command)) > before);
    wire.cut();
    expect(await failure).toMatchObject({ name: 'StoreUnavailable', maybeWritten: true });
    wire.delayReplies(0);
    await healed();
    await store.get(owner.scope);
    expect((await server.commandCount(command)) - before).toBe(calls);
  });

  it('and refused for a while, calls fail at once and unsent, and work when it is back', async () => {
    await using line = await withWire({});
    const { wire, store, stateOf, healed } = line;
    const owner = await bring(store, 'executing');
    wire.refuse(true);
    wire.cut();
    await until(async () => !(await store.health()).ok);
    const startedMs = performance.now();
    const failure = await store.settle(owner, paid()).catch((error: unknown) => error);
    expect(failure).toMatchObject({ name: 'StoreUnavailable', maybeWritten: false });
    expect(performance.now() - startedMs).toBeLessThan(200);
    wire.refuse(false);
    await healed();
    expect(await stateOf(owner)).toBe('executing');
    expect(await store.settle(owner, paid())).toBe('ok');
  });

  it('under a settlement, the owner goes on showing that it is alive', async () => {
    const leaseMs = 800;
    await using line = await withWire({ leaseMs });
    const { wire, store, witness, healed } = line;
    const owner = await bring(store, 'executing');
    wire.refuse(true);
    wire.cut();
    await expect(store.settle(owner, paid())).rejects.toThrow(StoreUnavailable);
    wire.refuse(false);
    await healed();
    const silent = await bring(witness, 'executing');
    await until(async () => {
      expect(await store.renew(owner)).not.toBe('stale');
      await sleep(leaseMs / 20);
      expect(await witness.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      return (await witness.claim(duplicateOf(silent))).kind === 'in_doubt';
    });
  });
});

describe.concurrent('round trips', () => {
  it('are one for a replay; for a first execution two before it may send, and one after', async () => {
    await using line = await withWire({});
    const { wire, store, witness } = line;
    const [owner, settled] = [newRequest(), await bring(witness, 'settled')];
    wire.delayReplies(60);
    const counted = async (work: () => Promise<unknown>) => {
      const before = wire.roundTrips;
      await work();
      return wire.roundTrips - before;
    };
    expect(await counted(() => store.claim(duplicateOf(settled)))).toBe(1);
    expect(await counted(() => store.claim(owner))).toBe(1);
    expect(await counted(() => store.begin(owner))).toBe(1);
    expect(await counted(() => store.settle(owner, paid()))).toBe(1);
  });

  it('of a replay carry one command', async () => {
    await using line = await withWire({});
    const { server, store, witness } = line;
    const settled = await bring(witness, 'settled');
    // Answered behind everything that was still under way.
    await witness.get(settled.scope);
    const commands = async () =>
      Number(/total_commands_processed:(\d+)/.exec(await server.admin.info('stats'))?.[1]);
    const before = await commands();
    const asking = (await commands()) - before;
    await store.claim(duplicateOf(settled));
    expect((await commands()) - before - 2 * asking).toBe(1);
  });
});
