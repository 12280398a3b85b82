import { describe, expect, it } from 'vitest';
import { CircuitBreaker } from '../../src/idempotency/circuit-breaker.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { StoreUnavailable } from '../../src/store/types.ts';
import { newCall, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

/** A clock that stands still unless the test moves it. */
function stoppedClock() {
  const clock = { ...systemClock, nowMs: 0, monotonicMs: () => clock.nowMs, wallMs: () => 0 };
  return clock;
}

const unavailable = { kind: 'store_unavailable', cause: expect.anything() };

/** Starts fail until the engine notices that the store refuses writes. */
async function refusing(rig: Rig) {
  const clock = stoppedClock();
  const store = await rig.faultyStore();
  const { engine, slots } = rig.engine(store, {}, undefined, clock);
  const [completed, doubtful] = [newCall(), newCall(unknown)];
  for (const call of [completed, doubtful]) await engine.handle(call);
  store.fail('start', 'before');
  for (let failures = 0; failures < 8; failures++) {
    expect(engine.storeRefuses).toBe(false);
    expect(await engine.handle(newCall())).toEqual(unavailable);
  }
  expect(engine.storeRefuses).toBe(true);
  return { clock, store, engine, slots, completed, doubtful };
}

describe.concurrent('while the store refuses writes', () => {
  it('keys that it knows are answered from reads, and others are refused without a start', async () => {
    await using rig = new Rig();
    const { store, engine, slots, completed, doubtful } = await refusing(rig);
    const { start } = store.asked;
    const { fingerprint } = otherOf(newRequest());
    expect(await engine.handle(retryOf(completed))).toEqual(replayFor(completed));
    expect(await engine.handle(retryOf(doubtful))).toMatchObject({ kind: 'in_doubt' });
    expect(await engine.handle({ ...retryOf(completed), fingerprint })).toEqual({ kind: 'mismatch' });
    expect(await engine.handle(newCall())).toEqual(unavailable);
    store.fail('peek', 'before');
    const cause = expect.any(StoreUnavailable);
    expect(await engine.handle(retryOf(completed))).toEqual({ kind: 'store_unavailable', cause });
    expect([store.asked.start - start, slots.inUse]).toEqual([0, 0]);
  });

  it('one request in 100 ms tries a start, and the first that succeeds closes the circuit breaker', async () => {
    await using rig = new Rig();
    const { clock, store, engine } = await refusing(rig);
    const { start } = store.asked;
    const pay = async (ms: number) => {
      clock.nowMs += ms;
      return await engine.handle(newCall());
    };
    for (const ms of [99, 1, 0, 99]) expect(await pay(ms)).toEqual(unavailable);
    expect(store.asked.start - start).toBe(1);
    store.heal();
    expect(await pay(0)).toEqual(unavailable);
    for (const ms of [1, 0, 0]) expect(await pay(ms)).toMatchObject({ kind: 'executed' });
    expect(engine.storeRefuses).toBe(false);
  });

  it('a start that has no answer holds one slot, and no other request tries one', async () => {
    await using rig = new Rig();
    const { clock, store, engine, slots } = await refusing(rig);
    const answer = store.hold('start');
    clock.nowMs += 100;
    const trying = engine.handle(newCall());
    await until(() => slots.inUse === 1);
    clock.nowMs += 10_000;
    expect(await engine.handle(newCall())).toEqual(unavailable);
    expect(slots.inUse).toBe(1);
    answer();
    expect(await trying).toMatchObject({ kind: 'executed' });
  });

  it('a retry of a key in doubt under inDoubt: retry is sent, because a restart is no start', async () => {
    await using rig = new Rig();
    const { store, engine, doubtful } = await refusing(rig);
    const { restart, peek } = store.asked;
    const retry = retryOf(doubtful, { inDoubt: 'retry' });
    expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', stored: true });
    expect([store.asked.restart - restart, store.asked.peek - peek]).toEqual([1, 1]);
  });
});

it('the circuit breaker opens after eight failures in a row, and closes with a success', () => {
  const breaker = new CircuitBreaker(stoppedClock());
  for (let rounds = 0; rounds < 2; rounds++) {
    for (let failures = 0; failures < 7; failures++) breaker.failed();
    expect([breaker.isOpen, breaker.admits()]).toEqual([false, true]);
    breaker.succeeded();
  }
  for (let failures = 0; failures < 8; failures++) breaker.failed();
  expect([breaker.isOpen, breaker.admits()]).toEqual([true, false]);
  breaker.succeeded();
  expect([breaker.isOpen, breaker.admits()]).toEqual([false, true]);
});
