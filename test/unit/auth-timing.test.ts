import { describe, expect, test } from 'vitest';
import { Authenticator } from '../../src/keys/authenticate.ts';
import { KeyIndex } from '../../src/keys/key-index.ts';
import { systemClock } from '../../src/lib/clock.ts';

const ROUNDS = 101;
const CALLS = 100;
const ATTEMPTS = 6;
const MAX_SPREAD = 1.35;

const secretOf = (name: string) => `sk_live_${name.padEnd(24, '0')}`;
/** The longest accepted secret key: 512 characters. */
const longOf = (name: string) => secretOf(name).padEnd(512, '0');
const scopes = ['*'];
const NOW_MS = 1_000_000;
const known = [
  { id: 'revoked', dangerouslyPlainSecret: secretOf('revoked'), scopes, revokedAt: NOW_MS - 1 },
  { id: 'expired', dangerouslyPlainSecret: secretOf('expired'), scopes, expiresAt: NOW_MS - 1 },
  { id: 'notYet', dangerouslyPlainSecret: secretOf('notYet'), scopes, notBefore: NOW_MS + 1 },
  { id: 'long', dangerouslyPlainSecret: longOf('revoked'), scopes, revokedAt: NOW_MS - 1 },
  ...Array.from({ length: 1000 }, (_, i) => ({
    id: `k${i}`,
    dangerouslyPlainSecret: secretOf(`${i}x`),
    scopes,
  })),
];
const keys = KeyIndex.of({ merchants: [{ code: 'M', keys: known }] }, 'pepper-of-the-tests');
const clock = { ...systemClock, wallMs: () => NOW_MS, monotonicMs: () => 0 };
const authenticator = new Authenticator(keys, { realm: 'r' }, clock);

/** Hashing takes longer for longer keys, which is no secret, so only keys of similar length are compared. */
const kinds: Record<string, Record<string, string>> = {
  'of usual length': {
    unknown: secretOf('unknown'),
    'unknown, differing from a revoked key in the last character': `${secretOf('revoked').slice(0, -1)}1`,
    'unknown and short': 'x',
    'unknown and longer': secretOf('unknown').repeat(2).slice(0, 50),
    revoked: secretOf('revoked'),
    expired: secretOf('expired'),
    'not yet valid': secretOf('notYet'),
  },
  'of 512 characters': {
    unknown: longOf('unknown'),
    'unknown, differing from a revoked key in the last character': `${longOf('revoked').slice(0, -1)}1`,
    revoked: longOf('revoked'),
  },
  'that is no bearer token': { empty: '', 'too long': 'x'.repeat(513), 'far too long': 'x'.repeat(16_000) },
};

/** The duration of `CALLS` refusals in nanoseconds. */
function timeOf(rawHeaders: string[]): number {
  const started = process.hrtime.bigint();
  for (let i = 0; i < CALLS; i++) authenticator.authenticate(rawHeaders);
  return Number(process.hrtime.bigint() - started);
}

/** Median durations by kind. The kinds take turns, so that other load on the machine affects all of them. */
function medians(secrets: Record<string, string>): number[] {
  const samples = Object.values(secrets).map((secret) => ({
    rawHeaders: ['Host', 'x', 'Authorization', `Bearer ${secret}`],
    times: [] as number[],
  }));
  for (let round = 0; round < ROUNDS; round++) {
    for (const { rawHeaders, times } of samples) times.push(timeOf(rawHeaders));
  }
  return samples.map(({ times }) => times.sort((a, b) => a - b)[ROUNDS >> 1] ?? Number.NaN);
}

describe.each(Object.entries(kinds))('an invalid key %s', (_name, secrets) => {
  test('is refused in the same time, whatever makes it invalid', () => {
    for (const secret of Object.values(secrets))
      expect(authenticator.authenticate(['Authorization', `Bearer ${secret}`]).kind).toBe('refused');
    medians(secrets); // warms up the compiler
    // One attempt below the limit is enough: noise can only increase the spread, and a real difference would show in all.
    let spread = Number.POSITIVE_INFINITY;
    for (let attempt = 0; attempt < ATTEMPTS && spread >= MAX_SPREAD; attempt++) {
      const times = medians(secrets);
      spread = Math.min(spread, Math.max(...times) / Math.min(...times));
    }
    expect(spread).toBeLessThan(MAX_SPREAD);
  });
});
