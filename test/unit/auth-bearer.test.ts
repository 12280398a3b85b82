import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { authOptions } from '../../src/keys/auth-options.ts';
import { Authenticator } from '../../src/keys/authenticate.ts';
import { forwardAuthorization, readBearer } from '../../src/keys/authorization-header.ts';
import { KeyIndex } from '../../src/keys/key-index.ts';
import { systemClock } from '../../src/lib/clock.ts';

const read = (...values: string[]) => readBearer(values.flatMap((value) => ['Authorization', value]));

describe('a bearer secret key', () => {
  test.each([
    ['Bearer sk_live_1', 'sk_live_1'],
    ['BEARER   sk_live_1', 'sk_live_1'],
    ['Bearer Az09-._~+/==', 'Az09-._~+/=='],
    [`Bearer ${'x'.repeat(512)}`, 'x'.repeat(512)],
  ])('is read from %s', (value, secret) => {
    expect(read(value)).toEqual({ kind: 'secret', secret });
  });

  test.each([
    '',
    'Bearer ',
    'Bearer =',
    'Bearer a b',
    'Bearer a=b',
    'Bearer ä',
    'Bearer\ta',
    'Basic YTpi',
    `Bearer ${'x'.repeat(513)}`,
  ])('is refused in %j', (value) => {
    expect(read(value)).toEqual({ kind: 'refused', reason: expect.stringContaining('must be: Bearer') });
  });
});

describe('for arbitrary headers', () => {
  const secret = 'sk_property_0123456789abcdef';
  const keys = KeyIndex.of(
    { merchants: [{ code: 'M', keys: [{ id: 'k', scopes: ['*'], dangerouslyPlainSecret: secret }] }] },
    undefined,
  );
  const authenticator = new Authenticator(keys, { realm: 'r' }, systemClock);
  const text = fc.oneof(fc.string({ unit: 'binary' }), fc.string());
  const names = fc.oneof(
    text,
    fc.constantFrom('Authorization', 'authorization', 'AUTHORIZATION', 'X-Authorization'),
  );
  const values = fc.oneof(
    text,
    fc.string().map((token) => `Bearer ${token}`),
    fc.constantFrom('Bearer', 'Bearer  '),
  );

  test('authentication never throws and never accepts an invalid key', () => {
    const headers = fc.oneof(
      fc.array(text),
      fc.array(fc.tuple(names, values)).map((pairs) => pairs.flat()),
    );
    fc.assert(
      fc.property(headers, (rawHeaders) => {
        const result = authenticator.authenticate(rawHeaders);
        expect(result).toMatchObject({ kind: 'refused', problem: { status: 401 } });
      }),
      { numRuns: 2000 },
    );
  });

  test('a valid key is accepted if and only if it is the only Authorization line', () => {
    const others = fc.array(fc.tuple(names, values));
    const spelling = fc.constantFrom('Authorization', 'authorization', 'aUTHORIZATION');
    fc.assert(
      fc.property(others, spelling, others, (before, name, after) => {
        const rawHeaders = [...before, [name, `Bearer ${secret}`], ...after].flat();
        const isOnlyOne = ![...before, ...after].some(([name]) => name.toLowerCase() === 'authorization');
        expect(authenticator.authenticate(rawHeaders).kind).toBe(isOnlyOne ? 'merchant' : 'refused');
      }),
    );
  });
});

test.each([
  [{}, 'Bearer of-the-merchant'],
  [{ forward: 'strip' }, undefined],
  [{ forward: 'replace', replaceWith: 'Bearer of-the-gateway' }, 'Bearer of-the-gateway'],
])('under %j the backend gets %s', (options, expected) => {
  expect(forwardAuthorization(authOptions.parse(options))('Bearer of-the-merchant')).toBe(expected);
});
