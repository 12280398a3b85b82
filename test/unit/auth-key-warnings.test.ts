import { expect, test } from 'vitest';
import { parseKeyFile } from '../../src/keys/key-file.ts';
import { KeyIndex } from '../../src/keys/key-index.ts';
import { countExpiringMerchants, firstMerchantEndMs, keyWarnings } from '../../src/keys/key-source.ts';

const NOW_MS = Date.parse('2026-11-22T12:00:00Z');

function indexOf(...keys: string[]): KeyIndex {
  const items = keys.map((members, i) => `{ id: k${i}, dangerouslyPlainSecret: sk_${i}, ${members} }`);
  const text = `merchants: [{ code: M-1, keys: [${items.join(', ')}] }]`;
  return KeyIndex.of(parseKeyFile(Buffer.from(text)), undefined);
}

const warningsOf = (...keys: string[]): string[] =>
  keyWarnings(indexOf(...keys).entries(), ['balance', 'withdraw'], NOW_MS);

test('merchants whose keys all end within seven days are counted', () => {
  const ends = (...members: string[]) => countExpiringMerchants(indexOf(...members).entries(), NOW_MS);
  expect(ends('expiresAt: 2026-11-29T12:00:00Z')).toBe(1);
  expect(ends('revokedAt: 2026-11-23T00:00:00Z', 'expiresAt: 2026-11-29T12:00:00Z')).toBe(1);
  expect(ends('expiresAt: 2026-11-29T12:00:01Z')).toBe(0);
  expect(ends('expiresAt: 2026-11-23T12:00:00Z', '')).toBe(0);
  expect(ends('expiresAt: 2026-11-22T12:00:00Z', 'revokedAt: 2026-01-01T00:00:00Z')).toBe(0);
  // The next key begins too late, or in time.
  expect(ends('notBefore: 2026-11-25T00:00:00Z', 'expiresAt: 2026-11-24T00:00:00Z')).toBe(1);
  expect(ends('notBefore: 2026-11-24T00:00:00Z', 'expiresAt: 2026-11-24T00:00:00Z')).toBe(0);
});

test('the first merchant without a valid key is found', () => {
  const end = (...members: string[]) => {
    const endMs = firstMerchantEndMs(indexOf(...members).entries(), NOW_MS);
    return endMs && new Date(endMs).toISOString().slice(0, 10);
  };
  expect(end('expiresAt: 2026-12-01T00:00:00Z', 'expiresAt: 2026-12-24T00:00:00Z')).toBe('2026-12-24');
  expect(end('expiresAt: 2026-12-24T00:00:00Z, revokedAt: 2026-12-23T00:00:00Z')).toBe('2026-12-23');
  expect(end('expiresAt: 2026-12-01T00:00:00Z', '')).toBeUndefined();
  // Between two keys the merchant has none, whatever their order in the file.
  const [first, last] = ['expiresAt: 2026-12-01T00:00:00Z', 'notBefore: 2026-12-12T00:00:00Z'];
  expect([end(first, last), end(last, first)]).toEqual(['2026-12-01', '2026-12-01']);
  const between = 'notBefore: 2026-11-30T00:00:00Z, expiresAt: 2026-12-12T00:00:00Z';
  expect([end(last, between, first), end(last)]).toEqual([undefined, undefined]);
  expect(end('expiresAt: 2026-11-01T00:00:00Z', last)).toBe('2026-11-01');
  // An expired key counts until it is removed or revoked: somebody may still use it.
  expect(end('expiresAt: 2026-11-01T00:00:00Z')).toBe('2026-11-01');
  expect(end('expiresAt: 2026-11-01T00:00:00Z, revokedAt: 2026-11-02T00:00:00Z')).toBeUndefined();
  const two = parseKeyFile(
    Buffer.from(`merchants:
  - { code: M-1, keys: [{ id: a, dangerouslyPlainSecret: sk_a, expiresAt: 2027-01-01T00:00:00Z }] }
  - { code: M-2, keys: [{ id: a, dangerouslyPlainSecret: sk_b, expiresAt: 2026-12-31T00:00:00Z }] }
  - { code: M-3, keys: [{ id: a, dangerouslyPlainSecret: sk_c }] }`),
  );
  expect(firstMerchantEndMs(KeyIndex.of(two, undefined).entries(), NOW_MS)).toBe(Date.parse('2026-12-31'));
});

test.each([
  ['a key without limits', ['']],
  ['a key that expires after 30 days', ['expiresAt: 2026-12-22T12:00:01Z']],
  ['a key that is not valid yet', ['', 'notBefore: 2027-01-01T00:00:00Z']],
  ['known scopes', ['scopes: [balance, withdraw, undeclared, other]', 'scopes: ["*"]']],
  [
    'a revoked key that has also expired and has an unknown scope',
    ['', 'revokedAt: 2026-01-01T00:00:00Z, expiresAt: 2026-02-01T00:00:00Z, scopes: [nothing]'],
  ],
])('there is no warning about %s', (_, keys) => {
  expect(warningsOf(...keys)).toEqual([]);
});

test('it is reported that no key is there, or in force', () => {
  expect(warningsOf()).toEqual(['there are no secret keys: every request gets 401']);
  expect(warningsOf('revokedAt: 2026-01-01T00:00:00Z', 'notBefore: 2027-01-01T00:00:00Z')).toEqual([
    'no secret key is in force: every request gets 401',
  ]);
});

test('keys are reported as expired from their expiresAt on', () => {
  expect(
    warningsOf('', 'expiresAt: 2026-11-22T12:00:00Z', 'expiresAt: 2020-01-01T00:00:00Z, scopes: [nothing]'),
  ).toEqual(['expired: M-1/k1, M-1/k2']);
});

test('keys that expire within 30 days are reported with the time', () => {
  expect(warningsOf('', 'expiresAt: 2026-12-22T11:59:59Z', 'expiresAt: 2026-11-22T13:00:01+01:00')).toEqual([
    'expires within 30 days: M-1/k1 (2026-12-22T11:59:59.000Z), M-1/k2 (2026-11-22T12:00:01.000Z)',
  ]);
});

test('scopes without an operation are reported, one line each', () => {
  expect(warningsOf('scopes: [withdrw, balance, withdrw]', 'scopes: [Balance]', 'scopes: [withdrw]')).toEqual(
    ['no operation has the scope "withdrw": M-1/k0, M-1/k2', 'no operation has the scope "Balance": M-1/k1'],
  );
});

test('at most five keys or scopes are named, and the others are counted', () => {
  expect(warningsOf(...Array(12).fill('scopes: [x]'))).toEqual([
    'no operation has the scope "x": M-1/k0, M-1/k1, M-1/k2, M-1/k3, M-1/k4, 7 more',
  ]);
  const scopes = Array.from({ length: 12 }, (_, i) => `s${i}`);
  const lines = warningsOf(`scopes: [${scopes.join(', ')}]`);
  expect(lines).toHaveLength(6);
  expect(lines.at(-1)).toBe('no operation has 7 more scopes');
});
