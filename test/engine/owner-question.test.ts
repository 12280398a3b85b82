import { expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { MemoryRegister } from '../../src/store/memory.ts';
import { newCall, Rig, replayFor, retryOf } from '../support/engine.ts';
import { FaultyStore } from '../support/faulty-store.ts';
import { GATEWAY_ID, LONG } from '../support/open-store.ts';
import { until } from '../support/until.ts';

/** Two gateways on a store whose clock the test moves. To the gateways no time passes. */
function twoGateways(rig: Rig) {
  let nowMs = 0;
  const register = new MemoryRegister(() => nowMs);
  const ledger = () => new Ledger(register, { gatewayId: GATEWAY_ID, lifetimes: LONG, clock: systemClock });
  const frozen = new FaultyStore(ledger());
  const store = ledger();
  const pass = (ms: number) => {
    nowMs += ms;
  };
  return { frozen, store, pass, first: rig.engine(frozen), second: rig.engine(store) };
}

const released = { as: 'released' } as const;
const note = { by: 'lookup', reason: 'not executed', source: 'lookup' } as const;

it.each(['lookup', 'retry'] as const)(
  'under %s, a machine that was frozen with both its clocks sends nothing when the key has another owner',
  async (inDoubt) => {
    await using rig = new Rig();
    const { frozen, store, pass, first, second } = twoGateways(rig);
    const thaw = frozen.hold('isOwner');
    const call = newCall(undefined, { inDoubt });
    const result = first.engine.handle(call);
    await until(() => frozen.asked.isOwner === 1);
    pass(LONG.leaseMs);
    expect(await store.peek(call)).toMatchObject({ kind: 'in_doubt' });
    const record = await store.get(call.scope);
    if (!record) throw new Error('there is no record');
    expect(await store.resolve(call.scope, record.token, released, note)).toBe('ok');
    const retry = retryOf(call);
    expect(await second.engine.handle(retry)).toMatchObject({ kind: 'executed', stored: true });
    thaw();
    expect(await result).toMatchObject({ exchange: { kind: 'not_sent' }, decision: 'release' });
    expect([call.counted.runs, retry.counted.runs]).toEqual([0, 1]);
    expect(await second.engine.handle(retryOf(call))).toEqual(replayFor(retry, 'retry'));
  },
);

it('sends nothing if the store does not say whose the key is, and frees the key', async () => {
  await using rig = new Rig();
  const { frozen, store, first } = twoGateways(rig);
  frozen.fail('isOwner', 'before', 1);
  const call = newCall(undefined, { inDoubt: 'lookup' });
  expect(await first.engine.handle(call)).toMatchObject({ exchange: { kind: 'not_sent' } });
  expect(call.counted.runs).toBe(0);
  expect(await store.get(call.scope)).toBeUndefined();
});

it('asks nothing under hold, where only a person releases a key', async () => {
  await using rig = new Rig();
  const { frozen, first } = twoGateways(rig);
  await first.engine.handle(newCall());
  expect(frozen.asked.isOwner).toBe(0);
});
