import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { Roster } from '../../src/kernel/roster.ts';

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

  it('does not keep removed values alive until a full collection, as a Set does', () => {
    const roster = new Roster<object>();
    expect(promoted((value) => roster.add(value))).toBeLessThan(8);
    const set = new Set<object>();
    const added = (value: object) => {
      set.add(value);
      return () => set.delete(value);
    };
    // If this fails, V8 has changed, and a Set could replace the roster.
    expect(promoted(added)).toBeGreaterThan(12);
  });
});
