import { describe, expect, test } from 'vitest';
import { Authenticator } from '../../src/auth/authenticate.ts';
import { KeyIndex } from '../../src/auth/key-index.ts';

const ROUNDS = 101;
const CALLS = 100;
const ATTEMPTS = 6;
const MAX_SPREAD = 1.35;

const secretOf = (name: string) => `sk_live_${name.padEnd(24, '0')}`;
/** The longest that is looked at. */
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
const clock = { wallMs: () => NOW_MS, monotonicMs: () => 0 };
const authenticator = new Authenticator(keys, { realm: 'r' }, clock);

/** Hashing a longer key takes longer, which tells nothing: so like is compared with like. */
const kinds: Record<string, Record<string, string>> = {
  usual: {
    unknown: secretOf('unknown'),
    'unknown but for its last character': `${secretOf('revoked').slice(0, -1)}1`,
    'unknown and short': 'x',
    'unknown and longer': secretOf('unknown').repeat(2).slice(0, 50),
    revoked: secretOf('revoked'),
    expired: secretOf('expired'),
    'not yet valid': secretOf('notYet'),
  },
  'very long': {
    unknown: longOf('unknown'),
    'unknown but for its last character': `${longOf('revoked').slice(0, -1)}1`,
    revoked: longOf('revoked'),
  },
  'not a key at all': { empty: '', 'too long': 'x'.repeat(513), 'far too long': 'x'.repeat(16_000) },
};

/** Nanoseconds that `CALLS` refusals take. */
function timeOf(rawHeaders: string[]): number {
  const started = process.hrtime.bigint();
  for (let i = 0; i < CALLS; i++) authenticator.authenticate(rawHeaders);
  return Number(process.hrtime.bigint() - started);
}

/** Medians by kind, measured in turn, so that whatever else the machine does falls on all of them. */
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

describe.each(Object.entries(kinds))('a wrong key, %s', (_name, secrets) => {
  test('does not tell by the time it takes what is wrong with it', () => {
    medians(secrets); // the first time is the compiler's
    // One good one of several: noise can only make the kinds differ, a real difference would show every time.
    let spread = Number.POSITIVE_INFINITY;
    for (let attempt = 0; attempt < ATTEMPTS && spread >= MAX_SPREAD; attempt++) {
      const times = medians(secrets);
      spread = Math.min(spread, Math.max(...times) / Math.min(...times));
    }
    expect(spread).toBeLessThan(MAX_SPREAD);
  });

  test('is wrong', () => {
    for (const secret of Object.values(secrets)) {
      expect(authenticator.authenticate(['Authorization', `Bearer ${secret}`]).kind).toBe('refused');
    }
  });
});

test('what is not a key at all is refused at no more than the price of a wrong one', () => {
  const all = { ...kinds['not a key at all'], wrong: secretOf('unknown') };
  medians(all);
  const ratios = Array.from({ length: 2 }, () => {
    const times = medians(all);
    return Math.max(...times.slice(0, -1)) / (times.at(-1) ?? 0);
  });
  expect(Math.min(...ratios)).toBeLessThan(MAX_SPREAD);
});
