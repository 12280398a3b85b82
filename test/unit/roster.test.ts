import { hash } from 'node:crypto';
import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { Roster, Table } from '../../src/kernel/roster.ts';

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

describe('a roster', () => {
  it('has the values that were added and not removed, in order', () => {
    const roster = new Roster<string>();
    const [a, b, c] = ['a', 'b', 'c'].map((value) => roster.add(value));
    expect(roster.values()).toEqual(['a', 'b', 'c']);
    b?.();
    b?.();
    expect(roster.values()).toEqual(['a', 'c']);
    roster.add('d');
    a?.();
    c?.();
    expect(roster.values()).toEqual(['d']);
  });

  it('may change during a loop over its values', () => {
    const roster = new Roster<() => void>();
    const leaving = roster.add(() => {});
    roster.add(() => leaving());
    for (const each of roster.values()) each();
    expect(roster.values()).toHaveLength(1);
  });
});

describe('a table', () => {
  const keys = Array.from({ length: 3000 }, (_, i) => hash('sha256', `${i}`));

  it('has the values that were added and not deleted', () => {
    const table = new Table<number>();
    for (const [i, key] of keys.entries()) table.set(key, i);
    expect(keys.map((key) => table.get(key))).toEqual(keys.map((_, i) => i));
    for (const key of keys.filter((_, i) => i % 3 > 0)) table.delete(key);
    expect(keys.map((key) => table.get(key))).toEqual(keys.map((_, i) => (i % 3 > 0 ? undefined : i)));
    expect(table.values().sort((a, b) => a - b)).toEqual(keys.map((_, i) => i).filter((i) => i % 3 === 0));
    for (const key of keys) table.delete(key);
    expect(table.values()).toEqual([]);
  });

  it('replaces a value', () => {
    const table = new Table<string>();
    table.set('key', 'old');
    table.set('key', 'new');
    expect(table.values()).toEqual(['new']);
    table.delete('key');
    expect(table.get('key')).toBeUndefined();
  });

  it('has keys of any length', () => {
    const table = new Table<string>();
    for (const key of ['', 'a', 'ab']) table.set(key, key);
    expect(['', 'a', 'ab', 'abc'].map((key) => table.get(key))).toEqual(['', 'a', 'ab', undefined]);
    expect(table.values()).toHaveLength(3);
  });
});

it('a roster and a table do not keep removed values alive until a full collection, as a Set and a Map do', () => {
  const roster = new Roster<object>();
  const table = new Table<object>();
  const set = new Set<object>();
  const map = new Map<string, object>();
  let n = 0;
  const newKey = () => hash('sha256', `${n++}`);
  expect(promoted((value) => roster.add(value))).toBeLessThan(8);
  const inTable = (value: object) => {
    const key = newKey();
    table.set(key, value);
    return () => table.delete(key);
  };
  expect(promoted(inTable)).toBeLessThan(8);
  // Last, because V8 remembers where long-lived values are created. If these fail, V8 has changed, and a Set and a Map would do.
  const inSet = (value: object) => {
    set.add(value);
    return () => set.delete(value);
  };
  expect(promoted(inSet)).toBeGreaterThan(12);
  const inMap = (value: object) => {
    const key = newKey();
    map.set(key, value);
    return () => map.delete(key);
  };
  expect(promoted(inMap)).toBeGreaterThan(12);
});
