import { describe, expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import type { Register, Reply, Write } from '../../src/store/register.ts';
import { StoreUnavailable } from '../../src/store/types.ts';
import { newCall, Rig, retryOf, unknown } from '../support/engine.ts';
import type { MemoryRegister } from '../support/memory-register.ts';
import { GATEWAY_ID, LONG } from '../support/open-store.ts';
import { until } from '../support/until.ts';

/** The first such write fails at once, and reaches the register when `arrive` is called. `answered`: writes after that. */
function lateRegister(register: MemoryRegister, kind: Write['kind']) {
  const late: (() => Promise<Reply>)[] = [];
  const counts = { answered: 0 };
  const through = (write: Write, send: () => Promise<Reply>): Promise<Reply> => {
    if (late.length > 0) return send().finally(() => counts.answered++);
    if (write.kind !== kind) return send();
    late.push(send);
    throw new StoreUnavailable('the reply was lost');
  };
  const line: Register = {
    ...{ replicates: false, renew: register.renew, endLease: register.endLease },
    create: async (id, write) => through(write, () => register.create(id, write)),
    replace: async (id, write) => through(write, () => register.replace(id, write)),
    read: (id) => register.read(id),
    list: (query) => register.list(query),
    idsOf: (digits) => register.idsOf(digits),
    countOpen: (options) => register.countOpen(options),
    audit: (id) => register.audit(id),
    readIdentity: (mode) => register.readIdentity(mode),
    visit: (mode) => register.visit(mode),
    health: () => register.health(),
    close: async () => {},
  };
  const store = new Ledger(line, { gatewayId: GATEWAY_ID, lifetimes: LONG });
  const arrive = async () => Promise.all(late.map((send) => send()));
  return { store, arrive, counts };
}

describe('a write whose reply was lost', () => {
  it('a start that arrives after it was taken back starts nothing, and the key is free', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { store: line, arrive, counts } = lateRegister(rig.register, 'create');
    const { engine } = rig.engine(line);
    const call = newCall();
    expect(await engine.handle(call)).toMatchObject({ kind: 'store_unavailable' });
    await until(() => counts.answered === 1);
    await expect(arrive()).rejects.toThrow(StoreUnavailable);
    expect(await store.get(call.recordId)).toBeUndefined();
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', stored: true });
    expect([call.counted.runs, retry.counted.runs]).toEqual([0, 1]);
  });

  it('a start that arrives when a retry has the key changes nothing', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { store: line, arrive, counts } = lateRegister(rig.register, 'create');
    const { engine } = rig.engine(line);
    const call = newCall();
    await engine.handle(call);
    await until(() => counts.answered === 1);
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', stored: true });
    expect(await arrive()).toMatchObject([{ done: false }]);
    expect(await store.get(call.recordId)).toMatchObject({ state: 'completed' });
  });

  it('a restart that arrives after it was taken back restarts nothing, and the key stays in doubt', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const call = newCall(unknown, { inDoubt: 'retry' });
    await rig.engine(store).engine.handle(call);
    const before = await store.get(call.recordId);
    const { store: line, arrive, counts } = lateRegister(rig.register, 'replace');
    const { engine } = rig.engine(line);
    const second = retryOf(call);
    expect(await engine.handle(second)).toMatchObject({ kind: 'store_unavailable' });
    // The first attempt to take it back takes the restart for written, and is refused.
    await until(() => counts.answered === 2);
    expect(await arrive()).toMatchObject([{ done: false }]);
    expect(await store.get(call.recordId)).toMatchObject({ state: 'in_doubt', token: before?.token });
    const third = retryOf(call);
    expect(await engine.handle(third)).toMatchObject({ kind: 'executed', stored: true });
    expect([second.counted.runs, third.counted.runs]).toEqual([0, 1]);
  });

  it('a restart whose answer was lost sends nothing, and the key is in doubt again', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    const call = newCall(unknown, { inDoubt: 'retry' });
    await engine.handle(call);
    store.fail('restart', 'after', 1);
    const second = retryOf(call);
    expect(await engine.handle(second)).toMatchObject({ kind: 'store_unavailable' });
    expect(second.counted.runs).toBe(0);
    await until(async () => (await store.get(call.recordId))?.state === 'in_doubt');
    expect(store.asked.release).toBe(0);
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'complete' });
  });
});
