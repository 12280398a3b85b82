import { describe, expect, it } from 'vitest';
import { KeyMemory, type KnownKey } from '../../src/keys/key-memory.ts';
import type { KeyEntry } from '../../src/keys/key-source.ts';

const entry = (digest: string, merchantCode = 'M-1'): KeyEntry => ({
  ...{ digest, merchantCode, keyId: 'upstream', scopes: ['*'] },
  ...{ notBeforeMs: Number.NEGATIVE_INFINITY, expiresAtMs: Number.POSITIVE_INFINITY },
  revokedAtMs: Number.POSITIVE_INFINITY,
});

/** Keys that are fresh for 100 ms, stale for 1000 ms, and whose failures count for 50 ms. */
function open(maxKeys = 10) {
  const clock = { ms: 0, monotonicMs: () => clock.ms };
  const memory = new KeyMemory({ acceptedMs: 100, staleMs: 1000, failureMs: 50, maxKeys }, clock);
  const known = (digest: string) => memory.known(digest) as KnownKey;
  return { clock, memory, known, mayUse: (digest: string) => memory.mayUse(known(digest)) };
}

describe('an accepted key may be used', () => {
  it('for acceptedMs from the sending of its probe, and is due for renewal after half of it', () => {
    const { clock, memory, known, mayUse } = open();
    clock.ms = 30;
    memory.accept(entry('a'), 10);
    expect(known('a').renewAtMs).toBe(60);
    clock.ms = 109;
    expect(mayUse('a')).toBe(true);
    clock.ms = 110;
    expect(mayUse('a')).toBe(false);
  });

  it('for staleMs while its probes fail, and no longer', () => {
    const { clock, memory, known, mayUse } = open();
    memory.accept(entry('a'), 0);
    for (clock.ms = 90; clock.ms < 1000; clock.ms += 45) {
      memory.postpone(known('a'), 10);
      expect(mayUse('a'), `${clock.ms}`).toBe(true);
    }
    clock.ms = 1000;
    memory.postpone(known('a'), 10);
    expect(mayUse('a')).toBe(false);
    expect(memory.mayContinue(known('a'))).toBe(false);
  });

  it('not when its last failure is too long ago, because the backend may be back and may have revoked it', () => {
    const { clock, memory, known, mayUse } = open();
    memory.accept(entry('a'), 0);
    clock.ms = 150;
    memory.postpone(known('a'), 10);
    clock.ms = 200;
    expect(mayUse('a')).toBe(false);
    expect(memory.mayContinue(known('a'))).toBe(true);
  });

  it('not after it was refused, although later probes fail', () => {
    const { clock, memory, known, mayUse } = open();
    memory.accept(entry('a'), 0);
    expect(memory.demote(known('a'), 10)).toBe(true);
    clock.ms = 20;
    memory.postpone(known('a'), 10);
    expect([mayUse('a'), memory.mayContinue(known('a'))]).toEqual([false, false]);
    expect(memory.demote(known('a'), 10)).toBe(false);
  });

  it('not after all answers were expired, also by a probe that was sent before', () => {
    const { clock, memory, mayUse } = open();
    memory.accept(entry('a'), 0);
    clock.ms = 20;
    memory.expireAll();
    expect(mayUse('a')).toBe(false);
    clock.ms = 30;
    memory.accept(entry('a'), 19);
    expect(mayUse('a')).toBe(false);
    memory.accept(entry('a'), 25);
    expect(mayUse('a')).toBe(true);
  });
});

it('a key keeps its first entry when it is accepted again', () => {
  const { memory } = open();
  memory.accept(entry('a', 'M-1'), 0);
  expect(memory.accept(entry('a', 'M-2'), 0).merchantCode).toBe('M-1');
});

it('the key that was used least recently is forgotten, and no more keys are kept than maxKeys', () => {
  const { memory } = open(3);
  for (const digest of ['a', 'b', 'c']) memory.accept(entry(digest), 0);
  const kept = () => ['a', 'b', 'c', 'd', 'e'].filter((digest) => memory.known(digest)).join('');
  memory.accept(entry('d'), 0);
  expect(kept()).toBe('bcd');
  memory.use('b');
  memory.accept(entry('e'), 0);
  expect(kept()).toBe('bde');
  expect(memory.size).toBe(3);
});

it('rejected keys push out no accepted one, and the oldest of them are forgotten beyond maxKeys', () => {
  const { memory, clock } = open(3);
  memory.accept(entry('a'), 0);
  for (const digest of ['w', 'x', 'y', 'z']) memory.reject(digest, { kind: 'unknown' }, 100);
  expect(memory.known('a')).toBeDefined();
  const rejected = () => ['w', 'x', 'y', 'z'].map((digest) => memory.rejected(digest)?.kind);
  expect(rejected()).toEqual([undefined, 'unknown', 'unknown', 'unknown']);
  clock.ms = 100;
  expect(rejected()).toEqual([undefined, undefined, undefined, undefined]);
});
