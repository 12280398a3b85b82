import { describe, expect, it } from 'vitest';
import { KeyCache, type KnownKey } from '../../src/keys/key-cache.ts';
import type { KeyEntry } from '../../src/keys/key-source.ts';

const entry = (digest: string, merchantCode = 'M-1'): KeyEntry => ({
  ...{ digest, merchantCode, keyId: 'upstream', scopes: ['*'] },
  ...{ notBeforeMs: Number.NEGATIVE_INFINITY, expiresAtMs: Number.POSITIVE_INFINITY },
  revokedAtMs: Number.POSITIVE_INFINITY,
});

/** Keys that are fresh for 100 ms, stale for 1000 ms, and whose failures count for 50 ms. */
function open(maxKeys = 10) {
  const clock = { ms: 0, monotonicMs: () => clock.ms };
  const cache = new KeyCache({ acceptedMs: 100, staleMs: 1000, failureMs: 50, maxKeys }, clock);
  const known = (digest: string) => cache.known(digest) as KnownKey;
  return { clock, cache, known, mayUse: (digest: string) => cache.mayUse(known(digest)) };
}

describe('an accepted key may be used', () => {
  it('for acceptedMs from the sending of its probe, and is due for renewal after half of it', () => {
    const { clock, cache, known, mayUse } = open();
    clock.ms = 30;
    cache.accept(entry('a'), 10);
    expect(known('a').renewAtMs).toBe(60);
    clock.ms = 109;
    expect(mayUse('a')).toBe(true);
    clock.ms = 110;
    expect(mayUse('a')).toBe(false);
  });

  it('for staleMs while its probes fail, and no longer', () => {
    const { clock, cache, known, mayUse } = open();
    cache.accept(entry('a'), 0);
    for (clock.ms = 90; clock.ms < 1000; clock.ms += 45) {
      cache.postpone(known('a'), 10);
      expect(mayUse('a'), `${clock.ms}`).toBe(true);
    }
    clock.ms = 1000;
    cache.postpone(known('a'), 10);
    expect(mayUse('a')).toBe(false);
    expect(cache.mayContinue(known('a'))).toBe(false);
  });

  it('not when its last failure is too long ago, because the backend may be back and may have revoked it', () => {
    const { clock, cache, known, mayUse } = open();
    cache.accept(entry('a'), 0);
    clock.ms = 150;
    cache.postpone(known('a'), 10);
    clock.ms = 200;
    expect(mayUse('a')).toBe(false);
    expect(cache.mayContinue(known('a'))).toBe(true);
  });

  it('not after it was refused, although later probes fail', () => {
    const { clock, cache, known, mayUse } = open();
    cache.accept(entry('a'), 0);
    expect(cache.demote(known('a'), 10)).toBe(true);
    clock.ms = 20;
    cache.postpone(known('a'), 10);
    expect([mayUse('a'), cache.mayContinue(known('a'))]).toEqual([false, false]);
    expect(cache.demote(known('a'), 10)).toBe(false);
  });

  it('not after all answers were expired, also by a probe that was sent before', () => {
    const { clock, cache, mayUse } = open();
    cache.accept(entry('a'), 0);
    clock.ms = 20;
    cache.expireAll();
    expect(mayUse('a')).toBe(false);
    clock.ms = 30;
    cache.accept(entry('a'), 19);
    expect(mayUse('a')).toBe(false);
    cache.accept(entry('a'), 25);
    expect(mayUse('a')).toBe(true);
  });

  it('not by a failure from before all answers were expired', () => {
    const { clock, cache, known, mayUse } = open();
    cache.accept(entry('a'), 0);
    clock.ms = 20;
    cache.postpone(known('a'), 10);
    cache.expireAll();
    expect(mayUse('a')).toBe(false);
    cache.postpone(known('a'), 10);
    expect(mayUse('a')).toBe(true);
  });
});

it('a key keeps its first entry when it is accepted again', () => {
  const { cache } = open();
  cache.accept(entry('a', 'M-1'), 0);
  expect(cache.accept(entry('a', 'M-2'), 0).merchantCode).toBe('M-1');
});

it('the key that was used least recently is forgotten, and no more keys are kept than maxKeys', () => {
  const { cache } = open(3);
  for (const digest of ['a', 'b', 'c']) cache.accept(entry(digest), 0);
  const kept = () => ['a', 'b', 'c', 'd', 'e'].filter((digest) => cache.known(digest)).join('');
  cache.accept(entry('d'), 0);
  expect(kept()).toBe('bcd');
  cache.use('b');
  cache.accept(entry('e'), 0);
  expect(kept()).toBe('bde');
  expect(cache.size).toBe(3);
});

it('rejected keys push out no accepted one, and the oldest of them are forgotten beyond maxKeys', () => {
  const { cache, clock } = open(3);
  cache.accept(entry('a'), 0);
  for (const digest of ['w', 'x', 'y', 'z']) cache.reject(digest, { kind: 'unknown' }, 100);
  expect(cache.known('a')).toBeDefined();
  const rejected = () => ['w', 'x', 'y', 'z'].map((digest) => cache.rejected(digest)?.kind);
  expect(rejected()).toEqual([undefined, 'unknown', 'unknown', 'unknown']);
  clock.ms = 100;
  expect(rejected()).toEqual([undefined, undefined, undefined, undefined]);
});
