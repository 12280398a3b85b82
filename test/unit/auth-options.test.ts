import { describe, expect, test } from 'vitest';
import { forwardAuthorization } from '../../src/auth/authorization-header.ts';
import { authOptions } from '../../src/auth/options.ts';

const mistakes = (value: unknown) =>
  authOptions.safeParse(value).error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`) ??
  [];

describe('section auth', () => {
  test('has a default for everything', () => {
    expect(authOptions.parse({})).toEqual({
      realm: 'oncegate',
      keys: { source: 'file', path: './keys.yaml' },
      forward: 'keep',
    });
  });

  test('lets a source be named without its path', () => {
    expect(authOptions.parse({ keys: { source: 'file' } }).keys.path).toBe('./keys.yaml');
  });

  test.each([
    ['a short pepper', { pepper: 'fifteen-letters' }, 'pepper: must have at least 16 characters'],
    ['a realm that would end its quotes', { realm: 'a"b' }, 'realm: must be printable ASCII'],
    [
      'a source that is not there yet',
      { keys: { source: 'redis' } },
      'keys.source: source must be one of: file',
    ],
    ['a misspelt member', { pepperr: 'x' }, 'Unrecognized key'],
    ['replace without a value', { forward: 'replace' }, 'replaceWith: is required with forward: replace'],
    [
      'a value without replace',
      { replaceWith: 'Bearer x' },
      'replaceWith: is allowed with forward: replace only',
    ],
    [
      'a value of two lines',
      { forward: 'replace', replaceWith: 'Bearer x\r\nA: b' },
      'replaceWith: must be printable',
    ],
  ])('refuses %s', (_name, value, expected) => {
    expect(mistakes(value).join('\n')).toContain(expected);
  });
});

describe('what the backend gets as Authorization', () => {
  test.each([
    [{}, 'Bearer mine'],
    [{ forward: 'strip' }, undefined],
    [{ forward: 'replace', replaceWith: 'Bearer ours' }, 'Bearer ours'],
  ])('%j', (options, expected) => {
    expect(forwardAuthorization(authOptions.parse(options))('Bearer mine')).toBe(expected);
  });
});
