/** What the ledger adds to the rules: it guesses, repeats, and remembers what an owner wrote. */
import { describe, expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import { measured } from '../../src/ledger/measured.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import { systemClock } from '../../src/lib/clock.ts';
import type { Replace, Reply } from '../../src/store/register.ts';
import { type Lifetimes, StoreUnavailable, UnreadableRecord } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';

const lifetimes = { leaseMs: 10, retentionMs: 100, inDoubtRetentionMs: 1000 };
const note = { by: 'ada', reason: 'the books show it' };

/** A register whose next replaces do what the test says. */
class Scripted extends MemoryRegister {
  isLeased?: (id: RecordId) => Promise<boolean>;
  readonly next: ((replace: () => Promise<Reply>) => Promise<Reply>)[] = [];

  override replace(id: RecordId, write: Replace): Promise<Reply> {
    const replace = () => super.replace(id, write);
    return (this.next.shift() ?? ((act) => act()))(replace);
  }
}

function open(change: Partial<Lifetimes> = {}) {
  const time = {
    ...{ nowMs: 1000, wallMs: 1_700_000_001_000 },
    pass(ms: number) {
      time.nowMs += ms;
      time.wallMs += ms;
    },
  };
  const clock = { ...systemClock, monotonicMs: () => time.nowMs, wallMs: () => time.wallMs };
  const register = new Scripted(clock.monotonicMs);
  const own = { gatewayId: 'gateway', lifetimes: { ...lifetimes, ...change }, clock };
  return { time, clock, register, ledger: new Ledger(register, own) };
}

/** The same, and a request that its owner executes. */
async function owning() {
  const opened = open();
  const owner = newRequest();
  expect(await opened.ledger.start(owner)).toEqual({ kind: 'started' });
  const result = async () => {
    expect(await opened.ledger.complete(owner, paid())).toBe('ok');
    return await opened.ledger.get(owner.recordId);
  };
  return { ...opened, owner, result };
}

const lost = () => Promise.reject(new StoreUnavailable('lost'));

describe('a write that is repeated', () => {
  it('is written if it never arrived', async () => {
    for (const write of ['complete', 'release', 'leaveInDoubt'] as const) {
      const { ledger, register, owner } = await owning();
      const act = () => (write === 'complete' ? ledger.complete(owner, paid()) : ledger[write](owner));
      register.next.push(lost);
      await expect(act()).rejects.toThrow('lost');
      expect(await act()).toBe('ok');
      const state = { complete: 'completed', release: undefined, leaveInDoubt: 'in_doubt' }[write];
      expect((await ledger.get(owner.recordId))?.state).toBe(state);
    }
  });
});

it('says that a resolution may be written if its reply is lost, whatever was refused before', async () => {
  const { ledger, register, time, owner } = await owning();
  time.nowMs += 20;
  // A reader marks the record first, so that the resolution is refused once.
  register.next.push(
    async (replace) => {
      await ledger.peek(owner);
      return await replace();
    },
    (replace) => replace(),
    (replace) => replace().then(lost),
  );
  const resolved = ledger.resolve(owner.recordId, owner.token, { as: 'completed', completion: paid() }, note);
  await expect(resolved).rejects.toMatchObject({ message: 'lost', maybeWritten: true });
});

it('says that a start is not written if it only left a mark on the record of a dead owner', async () => {
  const { ledger, register, time, owner } = await owning();
  time.nowMs += 20;
  register.next.push(lost);
  await expect(ledger.start(duplicateOf(owner))).rejects.toMatchObject({ maybeWritten: false });
});

it('finds the result of an owner that ends while lock nodes are asked for its lease', async () => {
  const { ledger, register, time, owner, result } = await owning();
  expect(await ledger.renew(owner)).toBe('ok');
  time.nowMs += 9;
  expect(await ledger.renew(owner)).toBe('ok');
  time.nowMs += 2;
  // As a register whose writes cannot ask the nodes.
  const { create } = register;
  register.create = async (...parts) => {
    const reply = await create.apply(register, parts);
    return reply.done || !reply.held ? reply : { done: false, held: { ...reply.held, isLeased: undefined } };
  };
  register.isLeased = async (id) => {
    expect(id).toBe(owner.recordId);
    expect(await result()).toMatchObject({ state: 'completed', wasInDoubt: false });
    return false;
  };
  expect(await ledger.start(duplicateOf(owner))).toMatchObject({ kind: 'completed' });
  expect(await ledger.get(owner.recordId)).toMatchObject({ state: 'completed', wasInDoubt: false });
});

describe('an owner', () => {
  it('is alive as long as it renews, and its result was never in doubt', async () => {
    const { ledger, time, owner, result } = await owning();
    for (let renewals = 0; renewals < 5; renewals++) {
      time.nowMs += 9;
      expect(await ledger.renew(owner)).toBe('ok');
      expect(await ledger.peek(owner)).toEqual({ kind: 'in_flight' });
    }
    expect(await ledger.isOwnerGone(owner.recordId)).toBe(false);
    expect(await result()).toMatchObject({ state: 'completed', wasInDoubt: false });
    expect(await ledger.renew(owner)).toBe('ok');
  });

  it('that renews too late learns once that others may have found it dead, and its result was in doubt', async () => {
    const { ledger, time, owner, result } = await owning();
    time.nowMs += 10;
    expect(await ledger.isOwnerGone(owner.recordId)).toBe(true);
    expect(await ledger.renew(owner)).toBe('lost');
    expect(await ledger.renew(owner)).toBe('ok');
    expect(await ledger.isOwnerGone(owner.recordId)).toBe(false);
    expect(await ledger.peek(owner)).toEqual({ kind: 'in_flight' });
    expect(await result()).toMatchObject({ state: 'completed', wasInDoubt: true });
  });

  it('that completes too late leaves a result that was in doubt, even if nobody has asked', async () => {
    for (const clock of ['nowMs', 'wallMs'] as const) {
      const { time, owner, ledger, result } = await owning();
      expect(await ledger.renew(owner)).toBe('ok');
      // The monotonic clock stands still while a machine is suspended.
      time[clock] += 10;
      expect(await result()).toMatchObject({ state: 'completed', wasInDoubt: true });
    }
  });

  it('that renews after a reader has found it dead is resolved only when it has given up', async () => {
    const { ledger, time, owner } = await owning();
    time.nowMs += 10;
    expect((await ledger.peek(owner)).kind).toBe('in_doubt');
    expect(await ledger.renew(owner)).toBe('lost');
    const resolve = () => ledger.resolve(owner.recordId, owner.token, { as: 'released' }, note);
    expect(await resolve()).toBe('alive');
    expect(await ledger.leaveInDoubt(owner)).toBe('ok');
    expect(await resolve()).toBe('ok');
    expect(await ledger.get(owner.recordId)).toBeUndefined();
  });

  it('that was replaced renews nothing, and gives back the lease that it has', async () => {
    const { ledger, register, time, owner } = await owning();
    time.nowMs += 10;
    expect((await ledger.peek(owner)).kind).toBe('in_doubt');
    expect(await ledger.renew(owner)).toBe('lost');
    const successor = duplicateOf(owner);
    expect(await ledger.restart(successor)).toBe('ok');
    expect(await ledger.renew(owner)).toBe('stale');
    expect((await register.read(owner.recordId))?.isLeased).toBe(false);
    expect(await ledger.renew(successor)).toBe('ok');
    time.nowMs += 10;
    expect(await ledger.renew(owner)).toBe('stale');
    expect((await ledger.peek(owner)).kind).toBe('in_doubt');
    expect(await ledger.renew(newRequest())).toBe('stale');
  });

  it('knows for how long everybody sees that it is executing', async () => {
    const { ledger, time, owner } = await owning();
    time.nowMs += 4;
    expect(await ledger.aliveForMs(owner)).toBe(6);
    expect(await ledger.expiresInMs(owner.recordId)).toBe(996);
    expect(await ledger.aliveForMs(duplicateOf(owner))).toBe(0);
    expect(await ledger.expiresInMs(newRequest().recordId)).toBeUndefined();
    await ledger.leaveInDoubt(owner);
    expect(await ledger.aliveForMs(owner)).toBe(0);
  });
});

describe('what is taken back', () => {
  it('is as it was before, and its command never succeeds when it arrives late', async () => {
    const { ledger } = open();
    const [lost, owner] = [newRequest(), newRequest()];
    // The start never arrived, or another process has sent it.
    expect(await ledger.takeBack(lost)).toBe('stale');
    await ledger.start(owner);
    expect(await ledger.takeBack(owner)).toBe('ok');
    for (const each of [lost, owner]) {
      await expect(ledger.start(each)).rejects.toMatchObject({ maybeWritten: false });
      expect(await ledger.peek(each)).toEqual({ kind: 'absent' });
      expect(await ledger.start(duplicateOf(each))).toEqual({ kind: 'started' });
      expect(await ledger.takeBack(each)).toBe('stale');
      expect(await ledger.peek(each)).toEqual({ kind: 'in_flight' });
    }
  });

  it('if it was a restart, is in doubt again', async () => {
    const { ledger, owner } = await owning();
    await ledger.leaveInDoubt(owner, 'reset');
    const before = await ledger.get(owner.recordId);
    const successor = duplicateOf(owner);
    expect(await ledger.restart(successor)).toBe('ok');
    expect(await ledger.takeBack(successor)).toBe('ok');
    const after = await ledger.get(owner.recordId);
    expect(after).toEqual({ ...before, revision: expect.any(Buffer) });
  });
});

it('gives each resolution a token of its own, so that no late owner writes over it', async () => {
  const { ledger } = open();
  const tokens = new Set<string | undefined>();
  for (let times = 0; times < 5; times++) {
    const owner = newRequest();
    await ledger.start(owner);
    await ledger.leaveInDoubt(owner);
    const resolution = { as: 'completed', completion: paid('by hand') } as const;
    expect(await ledger.resolve(owner.recordId, owner.token, resolution, note)).toBe('ok');
    expect(await ledger.complete(owner, paid('late'))).toBe('stale');
    tokens.add(owner.token.toString('hex')).add((await ledger.get(owner.recordId))?.token.toString('hex'));
  }
  expect(tokens.size).toBe(10);
});

it('lists and counts keys in doubt, and executing ones whose owner is dead', async () => {
  const { ledger, register, time } = open({ leaseMs: 5000, retentionMs: 10_000, inDoubtRetentionMs: 10_000 });
  const start = async (operation: string) => {
    const owner = newRequest({ operation });
    await ledger.start(owner);
    return owner;
  };
  const [doubtful, damaged] = [await start('checkout'), await start('checkout')];
  for (const owner of [doubtful, damaged]) await ledger.leaveInDoubt(owner);
  register.damage(damaged.recordId);
  // More than are read at once.
  const dead = await Promise.all(Array.from({ length: 100 }, () => start('withdraw')));
  const damagedDead = await start('withdraw');
  register.damage(damagedDead.recordId);
  await ledger.complete(await start('withdraw'), paid());
  time.pass(4000);
  const alive = await start('withdraw');
  time.pass(1001);

  const { records } = await ledger.list({ inDoubt: true, limit: 1000 });
  const found = new Map(records.map((record) => [record.recordId, record]));
  expect([...found.keys()].toSorted()).toEqual(
    [doubtful, damaged, damagedDead, ...dead].map(({ recordId }) => recordId).toSorted(),
  );
  expect(found.get(doubtful.recordId)).toMatchObject({ state: 'in_doubt', ownerGone: false });
  for (const { recordId } of dead)
    expect(found.get(recordId)).toMatchObject({ state: 'executing', ownerGone: true });
  for (const { recordId } of [damaged, damagedDead])
    expect(found.get(recordId)).toEqual({ recordId, unreadable: expect.stringMatching(/damaged/) });
  const everything = (await ledger.list({ inDoubt: false, limit: 1000 })).records;
  expect(everything).toHaveLength(records.length + 2);
  expect(everything.find(({ recordId }) => recordId === alive.recordId)).toMatchObject({ ownerGone: false });

  expect(await ledger.countDoubts()).toMatchObject({
    countedAtMs: time.wallMs,
    operations: new Map([
      ['checkout', { inDoubt: 2, ownerGone: 0 }],
      ['withdraw', { inDoubt: 100, ownerGone: 100 }],
    ]),
    oldestSinceMs: time.wallMs - 5001,
  });
  await expect(ledger.countDoubts({ signal: AbortSignal.abort() })).rejects.toThrow('aborted');
});

it('reports a record that cannot be read, and no identity, list or audit trail as one', async () => {
  const { ledger, register, clock } = open();
  const unreadable: string[] = [];
  const emit = emitTo({ unreadable: ({ recordId }) => unreadable.push(recordId) });
  const store = measured(ledger, clock, emit);
  const damaged = () => Promise.reject(new UnreadableRecord('the key holds another type of value'));
  Object.assign(register, { read: damaged, readIdentity: damaged, list: damaged, audit: damaged });
  const { recordId } = newRequest();
  const asked = [
    store.readIdentity('protect'),
    store.list({ inDoubt: true, limit: 1 }),
    store.audit(recordId),
  ];
  for (const answer of [...asked, store.get(recordId)])
    await expect(answer).rejects.toThrow(UnreadableRecord);
  expect(unreadable).toEqual([recordId]);
});
