import { hash } from 'node:crypto';
import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { HashTable, InFlightCounter, UnorderedList } from '../../src/lib/collections.ts';

const KB_EACH = 8;
const PASSING = 20_000;

/** The most megabytes that reached the old generation, garbage included, while many values were added and removed. */
function promoted(add: (value: object) => () => void): number {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const old = () =>
    getHeapSpaceStatistics().find(({ space_name }) => space_name === 'old_space')?.space_used_size ?? 0;
  const leaving: (() => void)[] = [add({})];
  collect();
  collect();
  const before = old();
  let most = 0;
  for (let i = 0; i < PASSING; i++) {
    leaving.push(add(new Array(KB_EACH * 128).fill(i)));
    if (leaving.length > 64) leaving.shift()?.();
    if (i % 200 === 0) most = Math.max(most, old() - before);
  }
  return most / 1024 / 1024;
}

describe('an unordered list', () => {
  it('has the values that were added and not removed, in order', () => {
    const list = new UnorderedList<string>();
    const [a, b, c] = ['a', 'b', 'c'].map((value) => list.add(value));
    expect(list.values()).toEqual(['a', 'b', 'c']);
    b?.();
    b?.();
    expect(list.values()).toEqual(['a', 'c']);
    list.add('d');
    a?.();
    c?.();
    // A copy: the list may change during a loop over its values.
    const before = list.values();
    list.add('e');
    expect(before).toEqual(['d']);
  });
});

describe('a hash table', () => {
  const keys = Array.from({ length: 3000 }, (_, i) => hash('sha256', `${i}`));

  it('has the values that were added and not deleted', () => {
    const table = new HashTable<number>();
    for (const [i, key] of keys.entries()) table.add(key, i);
    expect(keys.map((key) => table.get(key))).toEqual(keys.map((_, i) => i));
    for (const key of keys.filter((_, i) => i % 3 > 0)) table.delete(key);
    expect(keys.map((key) => table.get(key))).toEqual(keys.map((_, i) => (i % 3 > 0 ? undefined : i)));
    expect(table.values().sort((a, b) => a - b)).toEqual(keys.map((_, i) => i).filter((i) => i % 3 === 0));
    for (const key of keys) table.delete(key);
    expect(table.values()).toEqual([]);
  });
});

it('an unordered list and a hash table do not keep removed values alive until a full collection, as a Set does', () => {
  const list = new UnorderedList<object>();
  const table = new HashTable<object>();
  const set = new Set<object>();
  let n = 0;
  expect(promoted((value) => list.add(value))).toBeLessThan(8);
  const inTable = (value: object) => {
    const key = hash('sha256', `${n++}`);
    table.add(key, value);
    return () => table.delete(key);
  };
  expect(promoted(inTable)).toBeLessThan(8);
  // Last, because V8 remembers where long-lived values are created. If this fails, V8 has changed, and a Set would do.
  const inSet = (value: object) => {
    set.add(value);
    return () => set.delete(value);
  };
  expect(promoted(inSet)).toBeGreaterThan(12);
});

it('an in-flight counter resolves every waiting promise when nothing is in flight any more', async () => {
  const counter = new InFlightCounter();
  await counter.idle();
  counter.begin();
  counter.begin();
  const resolved: string[] = [];
  const waiting = ['a', 'b'].map((who) => counter.idle().then(() => resolved.push(who)));
  counter.end();
  await Promise.resolve();
  expect([counter.count, resolved]).toEqual([1, []]);
  counter.end();
  await Promise.all(waiting);
  expect([counter.count, resolved]).toEqual([0, ['a', 'b']]);
});
