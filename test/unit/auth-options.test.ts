import { describe, expect, test } from 'vitest';
import { forwardAuthorization } from '../../src/auth/authorization-header.ts';
import { authOptions } from '../../src/auth/options.ts';

const mistakes = (value: unknown) =>
  authOptions.safeParse(value).error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`) ??
  [];

describe('section auth', () => {
  test('has a default for every option but the pepper', () => {
    expect(authOptions.parse({})).toEqual({
      realm: 'oncegate',
      keys: { source: 'file', path: './keys.yaml' },
      forward: 'keep',
    });
  });

  test('has a default path for the source file', () => {
    expect(authOptions.parse({ keys: { source: 'file' } }).keys).toMatchObject({ path: './keys.yaml' });
  });

  test('has a default for every option of the source upstream', () => {
    expect(authOptions.parse({ keys: { source: 'upstream' } }).keys).toMatchObject({
      path: '/v2/get_balance',
      merchantCodeAt: 'data.merchant_code',
      acceptedMs: 60_000,
    });
  });

  test.each([
    ['a short pepper', { pepper: 'fifteen-letters' }, 'pepper: must have at least 16 characters'],
    ['a realm with a quote', { realm: 'a"b' }, 'realm: must be printable ASCII'],
    ['an unknown source', { keys: { source: 'ldap' } }, 'keys.source: source must be one of: file'],
    [
      'a probe of another host',
      { keys: { source: 'upstream', path: '//evil/' } },
      'keys.path: must be a path',
    ],
    [
      'a place of the merchant code that is no list of names',
      { keys: { source: 'upstream', merchantCodeAt: 'data[0].code' } },
      'keys.merchantCodeAt: must be names of members',
    ],
    [
      'Redis without an address',
      { pepper: 'x'.repeat(16), keys: { source: 'redis' } },
      'keys.url: needs exactly one',
    ],
    [
      'Redis without a pepper',
      { keys: { source: 'redis', url: 'redis://r:6379' } },
      'pepper: is required with keys.source: redis',
    ],
    ['a misspelt member', { pepperr: 'x' }, 'Unrecognized key'],
    ['replace without a value', { forward: 'replace' }, 'replaceWith: is required with forward: replace'],
    [
      'a value without replace',
      { replaceWith: 'Bearer x' },
      'replaceWith: is allowed with forward: replace only',
    ],
    [
      'a value with a line break',
      { forward: 'replace', replaceWith: 'Bearer x\r\nA: b' },
      'replaceWith: must be printable',
    ],
  ])('refuses %s', (_name, value, expected) => {
    expect(mistakes(value).join('\n')).toContain(expected);
  });
});

describe('the Authorization header that the backend gets', () => {
  test.each([
    [{}, 'Bearer of-the-merchant'],
    [{ forward: 'strip' }, undefined],
    [{ forward: 'replace', replaceWith: 'Bearer of-the-gateway' }, 'Bearer of-the-gateway'],
  ])('%j', (options, expected) => {
    expect(forwardAuthorization(authOptions.parse(options))('Bearer of-the-merchant')).toBe(expected);
  });
});
