import { expect, test } from 'vitest';
import { Authenticator } from '../../src/auth/authenticate.ts';
import { KeyIndex } from '../../src/auth/key-index.ts';

const ROUNDS = 101;
const CALLS = 100;

const secretOf = (name: string) => `sk_live_${name.padEnd(24, '0')}`;
const scopes = ['*'];
const NOW_MS = 1_000_000;
const known = [
  { id: 'revoked', dangerouslyPlainSecret: secretOf('revoked'), scopes, revokedAt: NOW_MS - 1 },
  { id: 'expired', dangerouslyPlainSecret: secretOf('expired'), scopes, expiresAt: NOW_MS - 1 },
  { id: 'notYet', dangerouslyPlainSecret: secretOf('notYet'), scopes, notBefore: NOW_MS + 1 },
  ...Array.from({ length: 1000 }, (_, i) => ({
    id: `k${i}`,
    dangerouslyPlainSecret: secretOf(`${i}x`),
    scopes,
  })),
];
const keys = KeyIndex.of({ merchants: [{ code: 'M', keys: known }] }, 'pepper-of-the-tests');
const clock = { wallMs: () => NOW_MS, monotonicMs: () => 0 };
const authenticator = new Authenticator(keys, { realm: 'r' }, clock);

const kinds: Record<string, string> = {
  unknown: secretOf('unknown'),
  'unknown but for its last character': `${secretOf('revoked').slice(0, -1)}1`,
  'unknown and short': 'x',
  'unknown and longer': secretOf('unknown').repeat(2).slice(0, 50),
  revoked: secretOf('revoked'),
  expired: secretOf('expired'),
  'not yet valid': secretOf('notYet'),
};

/** Nanoseconds that `CALLS` refusals take. */
function timeOf(rawHeaders: string[]): number {
  const started = process.hrtime.bigint();
  for (let i = 0; i < CALLS; i++) authenticator.authenticate(rawHeaders);
  return Number(process.hrtime.bigint() - started);
}

/** Medians by kind, measured in turn, so that whatever else the machine does falls on all of them. */
function medians(): number[] {
  const samples = Object.values(kinds).map((secret) => ({
    rawHeaders: ['Host', 'x', 'Authorization', `Bearer ${secret}`],
    times: [] as number[],
  }));
  for (let round = 0; round < ROUNDS; round++) {
    for (const { rawHeaders, times } of samples) times.push(timeOf(rawHeaders));
  }
  return samples.map(({ times }) => times.sort((a, b) => a - b)[ROUNDS >> 1] ?? Number.NaN);
}

test('a wrong key does not tell by the time it takes what is wrong with it', () => {
  medians(); // the first time is the compiler's
  // The best of several: noise can only make the kinds differ, a real difference would show every time.
  const spreads = Array.from({ length: 4 }, medians).map((times) => Math.max(...times) / Math.min(...times));
  expect(Math.min(...spreads)).toBeLessThan(1.35);
});

test('each of them is wrong', () => {
  for (const secret of Object.values(kinds)) {
    expect(authenticator.authenticate(['Authorization', `Bearer ${secret}`]).kind).toBe('refused');
  }
});
