import { describe, expect, it } from 'vitest';
import { type Execution, type Store, StoreUnavailable } from '../../src/store/contract.ts';
import { newCall, Rig, retryOf, unknown } from '../support/engine.ts';
import { until } from '../support/until.ts';

/** Its `start` or `restart` fails at once, and reaches the store when `arrive` is called. */
function lateStore(store: Store, command: 'start' | 'restart') {
  const late: Execution[] = [];
  const answers = { released: 0, marked: 0 };
  const lost = async (execution: Execution): Promise<never> => {
    late.push(execution);
    throw new StoreUnavailable('the reply was lost');
  };
  const line: Store = new Proxy(store, {
    get: (target, name: keyof Store) => {
      if (name === command && late.length === 0) return lost;
      if (name === 'release')
        return async (...args: Parameters<Store['release']>) => {
          const answer = await target.release(...args);
          answers.released++;
          return answer;
        };
      if (name === 'markInDoubt')
        return async (...args: Parameters<Store['markInDoubt']>) => {
          const answer = await target.markInDoubt(...args);
          answers.marked++;
          return answer;
        };
      const member = target[name];
      return typeof member === 'function' ? member.bind(target) : member;
    },
  });
  const arrive = async () => {
    for (const execution of late) await store[command](execution);
  };
  return { line, arrive, answers };
}

describe('a write whose reply was lost', () => {
  it('a start that arrives after it was taken back starts nothing, and the key is free', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { line, arrive, answers } = lateStore(store, 'start');
    const { engine } = rig.engine(line);
    const call = newCall();
    expect(await engine.handle(call)).toMatchObject({ kind: 'store_unavailable' });
    await until(() => answers.released === 1);
    await expect(arrive()).rejects.toThrow(StoreUnavailable);
    expect(await store.get(call.scope)).toBeUndefined();
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', stored: true });
    expect([call.counted.runs, retry.counted.runs]).toEqual([0, 1]);
  });

  it('a start that arrives when a retry has the key changes nothing', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { line, arrive, answers } = lateStore(store, 'start');
    const { engine } = rig.engine(line);
    const call = newCall();
    await engine.handle(call);
    await until(() => answers.released === 1);
    const retry = retryOf(call);
    expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', stored: true });
    await arrive().catch(() => {});
    expect(await store.get(call.scope)).toMatchObject({ state: 'completed' });
  });

  it('a restart that arrives after it was taken back restarts nothing, and the key stays in doubt', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const call = newCall(unknown, { inDoubt: 'retry' });
    await rig.engine(store).engine.handle(call);
    const { line, arrive, answers } = lateStore(store, 'restart');
    const { engine } = rig.engine(line);
    const second = retryOf(call);
    expect(await engine.handle(second)).toMatchObject({ kind: 'store_unavailable' });
    await until(() => answers.marked === 1);
    await expect(arrive()).rejects.toThrow(StoreUnavailable);
    expect(await store.get(call.scope)).toMatchObject({ state: 'in_doubt' });
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
    await until(async () => (await store.get(call.scope))?.state === 'in_doubt');
    expect(store.asked.release).toBe(0);
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'complete' });
  });
});
