import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Authenticator } from '../../src/keys/authenticate.ts';
import { forwardAuthorization, readBearer } from '../../src/keys/authorization-header.ts';
import { KeyIndex } from '../../src/keys/key-index.ts';
import { authOptions } from '../../src/keys/options.ts';
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

  test('is found among other headers, in any letter case of the header name', () => {
    const headers = ['Host', 'a', 'aUTHORIZATION', 'Bearer k', 'X-Authorization', 'Bearer other'];
    expect(readBearer(headers)).toEqual({ kind: 'secret', secret: 'k' });
  });

  test.each([
    ['', 'must be: Bearer'],
    ['Bearer ', 'must be: Bearer'],
    ['Bearer =', 'must be: Bearer'],
    ['Bearer a b', 'must be: Bearer'],
    ['Bearer a=b', 'must be: Bearer'],
    ['Bearer ä', 'must be: Bearer'],
    ['Bearer\ta', 'must be: Bearer'],
    ['Basic YTpi', 'must be: Bearer'],
    [`Bearer ${'x'.repeat(513)}`, 'must be: Bearer'],
  ])('is refused in %j', (value, reason) => {
    expect(read(value)).toEqual({ kind: 'refused', reason: expect.stringContaining(reason) });
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
  const names = fc.oneof(text, fc.constantFrom('Authorization', 'authorization', 'AUTHORIZATION', 'X'));
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
    const others = fc.array(fc.tuple(names, values).map(([name, value]) => [name, value] as const));
    fc.assert(
      fc.property(others, others, (before, after) => {
        const rawHeaders = [...before, ['Authorization', `Bearer ${secret}`], ...after].flat() as string[];
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
