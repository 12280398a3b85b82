import { describe, expect, test, vi } from 'vitest';
import { Authenticator } from '../../src/keys/authenticate.ts';
import { refusalOfScopes } from '../../src/keys/authorise.ts';
import { parseKeyFile } from '../../src/keys/key-file.ts';
import { KeyIndex } from '../../src/keys/key-index.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { stackForTest } from '../support/stack.ts';
import { head, Wire } from '../support/wire.ts';

const keys = KeyIndex.of(
  parseKeyFile(
    Buffer.from(`merchants:
      - code: M-1
        keys:
          - { id: old, dangerouslyPlainSecret: sk_old, expiresAt: 2026-02-01T00:00:00Z }
          - { id: new, dangerouslyPlainSecret: sk_new, notBefore: 2026-01-01T00:00:00Z }
          - { id: revoked, dangerouslyPlainSecret: sk_revoked, revokedAt: 2026-01-10T00:00:00Z }
      - { code: M-2, keys: [{ id: old, dangerouslyPlainSecret: sk_other }] }`),
  ),
  undefined,
);
const clock = { ...systemClock, now: '', wallMs: () => Date.parse(clock.now), monotonicMs: () => 0 };
const authenticator = new Authenticator(keys, { realm: 'payments' }, clock);

function merchantOrCode(secret: string, now: string): string {
  clock.now = now;
  const result = authenticator.authenticate(['Authorization', `Bearer ${secret}`]);
  return result.kind === 'merchant'
    ? `${result.merchant.code}/${result.merchant.keyId}`
    : result.problem.code;
}

describe('a secret key', () => {
  test('identifies its merchant, which can have several keys', () => {
    expect(merchantOrCode('sk_old', '2026-01-15T00:00:00Z')).toBe('M-1/old');
    expect(merchantOrCode('sk_new', '2026-01-15T00:00:00Z')).toBe('M-1/new');
    expect(merchantOrCode('sk_other', '2026-01-15T00:00:00Z')).toBe('M-2/old');
    expect(merchantOrCode('sk_unknown', '2026-01-15T00:00:00Z')).toBe('invalid_key');
  });

  test.each([
    ['2025-12-31T23:59:59.999Z', 'M-1/old', 'invalid_key'],
    ['2026-01-01T00:00:00Z', 'M-1/old', 'M-1/new'],
    ['2026-01-31T23:59:59.999Z', 'M-1/old', 'M-1/new'],
    ['2026-02-01T00:00:00Z', 'invalid_key', 'M-1/new'],
  ])('can be rotated with an overlap: %s', (now, oldKey, newKey) => {
    expect([merchantOrCode('sk_old', now), merchantOrCode('sk_new', now)]).toEqual([oldKey, newKey]);
  });

  test('is refused from its revokedAt on', () => {
    expect(merchantOrCode('sk_revoked', '2026-01-09T23:59:59.999Z')).toBe('M-1/revoked');
    expect(merchantOrCode('sk_revoked', '2026-01-10T00:00:00Z')).toBe('invalid_key');
  });

  test.each(['sk_unknown', 'sk_old', 'sk_new', 'sk_revoked'])(
    '%s: authentication does one look-up and reads the clock once',
    (secret) => {
      const find = vi.fn((wanted: string) => keys.find(wanted));
      const wallMs = vi.fn(() => Date.parse(secret === 'sk_new' ? '2020-01-01' : '2030-01-01'));
      const counted = new Authenticator({ find }, { realm: 'payments' }, { ...systemClock, wallMs });
      expect(counted.authenticate(['Authorization', `Bearer ${secret}`]).kind).toBe('refused');
      expect([find.mock.calls.length, wallMs.mock.calls.length]).toEqual([1, 1]);
    },
  );
});

describe('a valid key in the cache', () => {
  const ENTRY = { digest: 'd', merchantCode: 'M-1', keyId: 'k', scopes: ['*'] };
  const always = { notBeforeMs: 0, expiresAtMs: 1000, revokedAtMs: Number.POSITIVE_INFINITY };

  function withCache() {
    const time = { nowMs: 1 };
    const entries = new Map([['valid', { ...ENTRY, ...always }]]);
    const find = vi.fn((secret: string) => entries.get(secret));
    const source = { find, generation: 0 };
    const options = [{ realm: 'payments' }, { ...systemClock, wallMs: () => time.nowMs }] as const;
    const authenticator = new Authenticator(source, ...options);
    const kindOf = (secret: string) => authenticator.authenticate(['Authorization', `Bearer ${secret}`]).kind;
    return { time, entries, find, source, kindOf };
  }

  test('is not looked up again; invalid keys are looked up each time', () => {
    const { find, kindOf } = withCache();
    expect(['valid', 'valid', 'invalid', 'invalid', 'valid'].map(kindOf)).toEqual([
      ...['merchant', 'merchant', 'refused', 'refused', 'merchant'],
    ]);
    expect(find.mock.calls.flat()).toEqual(['valid', 'invalid', 'invalid']);
  });

  test('is refused once it has expired, and is then looked up like any invalid key', () => {
    const { time, find, kindOf } = withCache();
    expect(kindOf('valid')).toBe('merchant');
    time.nowMs = 1000;
    expect([kindOf('valid'), kindOf('valid')]).toEqual(['refused', 'refused']);
    expect(find).toHaveBeenCalledTimes(2);
  });

  test('is removed from the cache when the key source changes', () => {
    const { entries, source, kindOf } = withCache();
    expect(kindOf('valid')).toBe('merchant');
    entries.clear();
    source.generation++;
    expect(kindOf('valid')).toBe('refused');
  });
});

test('every kind of invalid key gets the same answer, byte for byte', async () => {
  const { port } = await stackForTest();
  const answers = new Set<string>();
  for (const secret of ['sk_test_future', 'sk_test_expired', 'sk_test_revoked', 'sk_no', 'x'.repeat(512)]) {
    const fields = [`Authorization: Bearer ${secret}`, 'X-Request-Id: the-same-id', 'Connection: close'];
    const wire = (await Wire.open(port)).write(head('POST /v1/index.php', ...fields));
    await wire.ended;
    answers.add(wire.rest.replace(/^Date: .*\r\n/m, ''));
  }
  expect(answers.size).toBe(1);
  const [answer] = answers;
  expect(answer).toMatch(/^HTTP\/1.1 401 /);
  expect(answer).toContain('\r\nWWW-Authenticate: Bearer realm="oncegate", error="invalid_token"\r\n');
  expect(answer).toContain('"code":"invalid_key"');
});

test.each([
  [['balance'], ['withdraw'], 'withdraw'],
  [['balance'], ['balance', 'withdraw'], 'withdraw'],
  [['balance', 'withdraw'], ['balance', 'withdraw', 'checkout'], 'checkout'],
  [['withdraw'], ['with'], 'with'],
  [['undeclared'], ['other'], 'other'],
  [['balance', 'withdraw'], ['withdraw', 'balance'], undefined],
  [['balance', '*'], ['withdraw', 'other'], undefined],
])('a key with the scopes %j that needs %j lacks %j', (scopes, needed, missing) => {
  expect(refusalOfScopes({ scopes }, needed, 'r')?.detail).toBe(
    missing && `The secret key lacks the scope "${missing}".`,
  );
});
