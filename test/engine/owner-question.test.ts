import { expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import { newCall, notSent, Rig, replayFor, retryOf } from '../support/engine.ts';
import { faultyStore } from '../support/faulty-store.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import { movableClock } from '../support/movable-clock.ts';
import { GATEWAY_ID, LONG } from '../support/open-store.ts';
import { until } from '../support/until.ts';

/** Two gateways on a store whose clock the test moves. To the gateways no time passes. */
function twoGateways(rig: Rig, clock: Clock = systemClock) {
  let nowMs = 0;
  const register = new MemoryRegister(() => nowMs);
  const ledger = () => new Ledger(register, { gatewayId: GATEWAY_ID, lifetimes: LONG, clock });
  const frozen = faultyStore(ledger());
  const store = ledger();
  const pass = (ms: number) => {
    nowMs += ms;
  };
  const first = rig.engine(frozen, {}, undefined, clock);
  return { frozen, store, pass, first, second: rig.engine(store) };
}

const released = { as: 'released' } as const;
const note = { by: 'lookup', reason: 'not executed', source: 'lookup' } as const;

it.each(['lookup', 'retry'] as const)(
  'under %s, a machine that was frozen with both its clocks sends nothing when the key has another owner',
  async (inDoubt) => {
    await using rig = new Rig();
    const { frozen, store, pass, first, second } = twoGateways(rig);
    const thaw = frozen.hold('aliveForMs');
    const call = newCall(undefined, { inDoubt });
    const result = first.engine.handle(call);
    await until(() => frozen.asked.aliveForMs === 1);
    pass(LONG.leaseMs);
    expect(await store.peek(call)).toMatchObject({ kind: 'in_doubt' });
    const record = await store.get(call.recordId);
    if (!record) throw new Error('there is no record');
    expect(await store.resolve(call.recordId, record.token, released, note)).toBe('ok');
    const retry = retryOf(call);
    expect(await second.engine.handle(retry)).toMatchObject({ kind: 'executed', stored: true });
    thaw();
    expect(await result).toMatchObject({ exchange: { kind: 'not_sent' }, decision: 'release' });
    expect([call.counted.runs, retry.counted.runs]).toEqual([0, 1]);
    expect(await second.engine.handle(retryOf(call))).toEqual(replayFor(retry, 'retry'));
  },
);

it('may not send once others may take it for dead, although it asked before', async () => {
  const lease = LONG.leaseMs;
  for (const [startedMs, frozenMs, ms, expected] of [
    [0, 0, 0.9 * lease, true],
    // The question does not prolong the fence, which counts from before the start.
    [0.5 * lease, 0, 0.4 * lease, true],
    [0.5 * lease, 0, 0.6 * lease, false],
    // The machine was frozen with both its clocks, but not long enough to lose the key.
    [0, 0.9 * lease, 0.05 * lease, true],
    [0, 0.9 * lease, 0.2 * lease, false],
    [0, lease, 0, undefined],
  ] as const) {
    await using rig = new Rig();
    const clock = movableClock();
    const { frozen, pass, first } = twoGateways(rig, clock);
    let answer: boolean | undefined;
    const run = async (maySend: () => boolean) => {
      clock.pass(ms);
      answer = maySend();
      return notSent;
    };
    const started = frozen.hold('start');
    const asked = frozen.hold('aliveForMs');
    const result = first.engine.handle(newCall(run, { inDoubt: 'lookup' }));
    await until(() => frozen.asked.start === 1);
    clock.pass(startedMs);
    started();
    await until(() => frozen.asked.aliveForMs === 1);
    pass(frozenMs);
    asked();
    await result;
    expect(answer, `${startedMs}, ${frozenMs}, ${ms}`).toBe(expected);
  }
});

it('sends nothing if the store does not say whose the key is, and frees the key', async () => {
  await using rig = new Rig();
  const { frozen, store, first } = twoGateways(rig);
  frozen.fail('aliveForMs', 'before', 1);
  const call = newCall(undefined, { inDoubt: 'lookup' });
  expect(await first.engine.handle(call)).toMatchObject({ exchange: { kind: 'not_sent' } });
  expect(call.counted.runs).toBe(0);
  expect(await store.get(call.recordId)).toBeUndefined();
});

it('asks nothing under hold, where only a person releases a key', async () => {
  await using rig = new Rig();
  const { frozen, first } = twoGateways(rig);
  await first.engine.handle(newCall());
  expect(frozen.asked.aliveForMs).toBe(0);
});
