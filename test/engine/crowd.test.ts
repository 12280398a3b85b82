import { describe, expect, it } from 'vitest';
import { executing, newCall, openRun, Rig, replayFor, retryOf } from '../support/engine.ts';
import { newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';

const ONE_SLOT = { maxConnections: 1, maxQueued: 100, queueTimeoutMs: 20_000 };

describe.concurrent('a thousand duplicates of one key', () => {
  it('cause one start, and no further reads when the first completes', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store, { maxConnections: 2 });
    const { run, end } = openRun();
    const call = newCall(run, { waitMs: 20_000 });
    const first = engine.handle(call);
    const duplicates = Array.from({ length: 1000 }, () => retryOf(call));
    const results = duplicates.map((duplicate) => engine.handle(duplicate));
    await until(() => engine.executing === 1);
    expect(engine.waiting).toBe(1000);
    expect(slots.inUse).toBe(1);
    end();
    expect(await first).toMatchObject({ kind: 'executed', stored: true });
    for (const result of await Promise.all(results)) expect(result).toEqual(replayFor(call));
    expect(store.asked).toMatchObject({ start: 1, peek: 0, complete: 1 });
    for (const { counted } of duplicates) expect(counted.runs).toBe(0);
    expect([engine.waiting, slots.inUse]).toEqual([0, 0]);
  });

  it('hold no slot while they wait for an execution in another process', async () => {
    await using rig = new Rig();
    const elsewhere = rig.engine(await rig.store()).engine;
    const { call, first, end } = await executing(elsewhere);
    const { engine, slots } = rig.engine(await rig.store(), { maxConnections: 1 });
    const crowd = Array.from({ length: 1000 }, () => engine.handle(retryOf(call, { waitMs: 20_000 })));
    await until(() => engine.waiting === 1000);
    expect(slots.inUse).toBe(0);
    expect(await engine.handle(newCall())).toMatchObject({ kind: 'executed' });
    end();
    await first;
    for (const result of await Promise.all(crowd)) expect(result).toMatchObject({ kind: 'replayed' });
  });
});

it('the key of a dead owner is sent again under inDoubt: retry, although every slot is always taken', async () => {
  await using rig = new Rig();
  const leaseMs = 200;
  const store = await rig.faultyStore({ leaseMs });
  const call = newCall(undefined, { inDoubt: 'retry' });
  await store.start({ ...newRequest(), ...call });
  await until(async () => (await store.peek(call)).kind === 'in_doubt');
  const { engine, slots } = rig.engine(store, ONE_SLOT);
  const others: { end: () => void; result: Promise<unknown>; runs: () => number }[] = [];
  const occupy = () => {
    const { run, end } = openRun();
    const other = newCall(run);
    others.push({ end, result: engine.handle(other), runs: () => other.counted.runs });
  };
  occupy();
  await until(() => others[0]?.runs() === 1);
  const result = engine.handle(call);
  await until(() => slots.queued === 1);
  for (let round = 0; round < 8 && call.counted.runs === 0; round++) {
    const { queued } = slots;
    occupy();
    await until(() => slots.queued === queued + 1);
    others[round]?.end();
    await others[round]?.result;
    await until(() => call.counted.runs === 1 || others[round + 1]?.runs() === 1);
  }
  expect(call.counted.runs).toBe(1);
  expect(await result).toMatchObject({ kind: 'executed', stored: true });
  for (const { end } of others) end();
  await Promise.all(others.map((other) => other.result));
});
