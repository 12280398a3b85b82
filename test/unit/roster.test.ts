import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { Roster } from '../../src/kernel/roster.ts';

describe('a roster', () => {
  it('has what was added and not taken off, in order', () => {
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

  it('may change while somebody goes through it', () => {
    const roster = new Roster<() => void>();
    const leaving = roster.add(() => {});
    roster.add(() => leaving());
    for (const each of roster.values()) each();
    expect(roster.values()).toHaveLength(1);
  });

  const KB_EACH = 8;
  const PASSING = 20_000;

  /** Megabytes that had grown old at most, dead ones included, while many of them came and went. */
  function grownOld(add: (value: object) => () => void): number {
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

  it('lets what has left die young, which a Set does not', () => {
    const roster = new Roster<object>();
    expect(grownOld((value) => roster.add(value))).toBeLessThan(8);
    const set = new Set<object>();
    const added = (value: object) => {
      set.add(value);
      return () => set.delete(value);
    };
    // Should it one day do so, a Set will do, and no roster is needed any more.
    expect(grownOld(added)).toBeGreaterThan(12);
  });
});
