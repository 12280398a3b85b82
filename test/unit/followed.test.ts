import { expect, onTestFinished, test } from 'vitest';
import { Followed } from '../../src/lib/followed.ts';
import { until } from '../support/until.ts';

/** Follows what `load` gives, and collects what it is told. There is no file, so only retries and reloads read. */
function follow(load: () => string | Promise<string>, apply: (value: string) => void = () => {}) {
  const told: string[] = [];
  let loads = 0;
  let again = 0;
  const followed = new Followed<string>(
    {
      ...{ paths: [], pollMs: 3_600_000, retryMs: 5 },
      read: async () => ({
        id: 'same',
        load: () => {
          loads++;
          return load();
        },
      }),
      apply: (value) => {
        apply(value);
        told.push(value);
      },
      refused: (error) => told.push(`refused: ${(error as Error).message}`),
      refusedAgain: () => again++,
    },
    'same',
  );
  onTestFinished(() => followed.close());
  return { followed, told, loads: () => loads, again: () => again };
}

/** A value that is refused for a reason, which a test changes. */
function refusable(reason: string | undefined) {
  const state = { reason };
  const load = () => {
    if (state.reason !== undefined) throw new Error(state.reason);
    return 'good';
  };
  return { state, load };
}

test('what was refused is tried again, and told again only for another reason', async () => {
  const { state, load } = refusable('too early');
  const { followed, told, loads } = follow(load);
  await followed.reload();
  await until(() => loads() >= 4);
  expect([told, followed.refusal]).toEqual([['refused: too early'], 'too early']);
  state.reason = 'too late';
  await until(() => told.length === 2);
  state.reason = undefined;
  await until(() => followed.refusal === undefined);
  expect(told).toEqual(['refused: too early', 'refused: too late', 'good']);
});

test('another version that a retry finds may be half written, and waits until it has not changed for a poll', async () => {
  const told: string[] = [];
  let [reads, content] = [0, 'wrong'];
  const followed = new Followed<string>({
    ...{ paths: [], pollMs: 3_600_000, retryMs: 5 },
    read: async () => {
      reads++;
      return { id: content, load: () => (content === 'wrong' ? Promise.reject(new Error('no')) : content) };
    },
    apply: (value) => void told.push(value),
    refused: () => told.push('refused'),
  });
  onTestFinished(() => followed.close());
  await followed.reload();
  content = 'half';
  const before = reads;
  await until(() => reads >= before + 3 || told.length > 1);
  expect(told).toEqual(['refused']);
  content = 'whole';
  await followed.reload();
  expect([told, followed.refusal]).toEqual([['refused', 'whole'], undefined]);
});

test('what is in force is not read again without a change', async () => {
  const inForce = follow(() => 'good');
  const refused = follow(() => Promise.reject(new Error('no')));
  await Promise.all([inForce.followed.reload(), refused.followed.reload()]);
  // Both are retried equally often.
  await until(() => refused.loads() >= 4);
  expect(inForce.loads()).toBe(1);
});

test('a value that cannot be put in force counts as refused', async () => {
  const { followed, told } = follow(
    () => 'good',
    () => {
      throw new Error('no room');
    },
  );
  await followed.reload();
  expect([told, followed.refusal]).toEqual([['refused: no room'], 'no room']);
});

test('each retry that is refused for the same reason is counted, also if the value cannot be put in force', async () => {
  const noRoom = () => {
    throw new Error('no room');
  };
  const broken = follow(() => Promise.reject(new Error('no')));
  const useless = follow(() => 'good', noRoom);
  for (const { followed, told, again } of [broken, useless]) {
    await followed.reload();
    await until(() => again() >= 2);
    expect(told).toHaveLength(1);
  }
});

test('a value that was still being loaded at the close is not put in force', async () => {
  const { promise, resolve } = Promise.withResolvers<string>();
  const { followed, told, loads } = follow(() => promise);
  const reloaded = followed.reload();
  await until(() => loads() === 1);
  followed.close();
  resolve('late');
  await reloaded;
  expect(told).toEqual([]);
});
