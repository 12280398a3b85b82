import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ambiguityOf, pathOf } from '../../src/requests/target.ts';

describe('an ambiguous target', () => {
  test.each([
    ['http://evil.test/v1/index.php', 'no origin form'],
    ['*', 'no origin form'],
    ['evil.test:443', 'no origin form'],
    ['/v1/index.php#x', 'a fragment'],
    ['/v1//index.php', 'an empty segment'],
    // To some readers the path /v1/index.php of the host x.
    ['/;x/x/v1/index.php', 'an empty segment'],
    ['/;/x/v1/index.php', 'an empty segment'],
    ['/%3bx/x/v1/index.php', 'an empty segment'],
    ['/v1/;x/y', 'an empty segment'],
    ['/:$i30:$INDEX_ALLOCATION/x/v1', 'an empty segment'],
    ['/%3a%3a$DATA/v1/v1/', 'an empty segment'],
    ['/v1/..', 'a dot segment'],
    ['/x/../v1/index.php', 'a dot segment'],
    ['/x/%2e%2E/v1/index.php', 'a dot segment'],
    ['/x/..;a=b/v1', 'a dot segment'],
    ['/x/..%3fa=b', 'a dot segment'],
    ['/x/..%20/v1', 'a dot segment'],
    ['/x/..::$INDEX_ALLOCATION/v1', 'a dot segment'],
    // The one dot leader, the two dot leader, the fullwidth full stop.
    ['/x/%E2%80%A4', 'a dot segment'],
    ['/x/%E2%80%A5/v1', 'a dot segment'],
    ['/x/%EF%BC%8E%EF%BC%8E/v1', 'a dot segment'],
    // A fullwidth semicolon after the dots.
    ['/x/..%EF%BC%9Bx/v1', 'a dot segment'],
    // ASP.NET takes session ids out of a path: all of these are /v1/index.php to it.
    ['/(S(x))/v1/index.php', 'ASP.NET removes'],
    ['/v1/%28A(x)S(y)F())/index.php', 'ASP.NET removes'],
    ['/v1/in/(S((;x))dex.php', 'ASP.NET removes'],
    ['/v1\\index.php', 'a backslash'],
    ['/v1%2findex.php', 'an encoded slash'],
    ['/v1%5cindex.php', 'an encoded slash, backslash'],
    // The fullwidth solidus, the division slash, the set minus, a/c.
    ['/v1%EF%BC%8Findex.php', 'read as a slash'],
    ['/v1%E2%88%95index.php', 'read as a slash'],
    ['/v1%E2%88%96index.php', 'read as a slash'],
    ['/%E2%84%80', 'read as a slash'],
    ['/v1%C2%A5index.php', 'read as a slash'],
    ['/v1/index.php%00', 'NUL'],
    ['/v1/%zz', 'a percent sign'],
    ['/v1/%252e', 'a character encoded twice'],
    ['/v1/%256%39ndex.php', 'a character encoded twice'],
    ['/v1/index.php%0a', 'a control character'],
    ['/v1/%25u0069ndex.php', 'a character encoded twice'],
    // A fullwidth percent sign.
    ['/v1/%EF%BC%8569ndex.php', 'a character encoded twice'],
    ['/v1/%C2%85', 'a control character'],
    ['/v1/índex.php', 'not printable ASCII'],
    ['/v1/index.php\t', 'not printable ASCII'],
  ])('%s', (target, reason) => {
    expect(ambiguityOf(target)).toContain(reason);
  });

  test.each([
    ['an overlong dot', '/v1/%C0%AE%C0%AE/x'],
    ['an overlong slash of two bytes', '/v1%C0%AFindex.php'],
    ['an overlong slash of six bytes', '/v1%FC%80%80%80%80%AFindex.php'],
    ['a byte of Latin-1', '/caf%E9'],
    ['a sequence with a slash in it', '/caf%C3/%A9'],
    ['a continuation byte without its first byte', '/%AE'],
    ['an encoded surrogate', '/%ED%A0%80'],
    ['a code point beyond Unicode', '/%F4%90%80%80'],
  ])('%s is not UTF-8: %s', (_name, target) => {
    expect(ambiguityOf(target)).toContain('not UTF-8');
  });

  test.each([
    '/',
    '/v3/caf%c3%a9/%E6%97%A5%E6%9C%AC/%F0%9F%98%80/%CE%A9?x=%E9',
    // An e with a combining accent, one half, an ellipsis inside a name, a Kelvin sign.
    '/cafe%CC%81/%C2%BD/a%E2%80%A6b/%E2%84%AA',
    '/100%25/50%25x',
    "/odata/Orders(5)/Customers('S(x)')/(x)/f(S(x))",
    '/v1/index.php?next=//evil.test/../x%2f%00\\',
    '/a.b/..c/.well-known/...',
    '/%20/%41/~user/@x:y,z;p=1',
  ])('%s is not one', (target) => {
    expect(ambiguityOf(target)).toBeUndefined();
  });
});

test('every character with a slash or a backslash in its compatibility form is refused', () => {
  const found: string[] = [];
  for (let code = 0x80; code <= 0x10ffff; code++) {
    if (code >= 0xd800 && code <= 0xdfff) continue;
    const character = String.fromCodePoint(code);
    if (/[/\\]/.test(character.normalize('NFKC'))) found.push(character);
  }
  expect(found.length).toBeGreaterThan(6);
  for (const character of found) {
    expect(ambiguityOf(`/a${encodeURIComponent(character)}b`), character).toContain('read as a slash');
  }
});

const decode = (path: string): string | undefined => {
  try {
    return decodeURIComponent(path);
  } catch {
    return undefined;
  }
};

test('every path with a dot segment or an empty segment after decoding is refused', () => {
  const targets = fc
    .string({ unit: fc.constantFrom(...'/.;%2eEfF5cC0a+ %00index.php:$'), maxLength: 12 })
    .map((text) => `/${text}`);
  let refused = 0;
  const check = (target: string) => {
    const reason = ambiguityOf(target);
    const segments = decode(target)?.split('/').slice(1) ?? ['.'];
    // A trailing slash makes no empty segment.
    if (segments.slice(0, -1).includes('') || segments.some((segment) => /^\.{1,2}$/.test(segment))) {
      refused++;
      expect(reason, target).toBeDefined();
    }
  };
  fc.assert(fc.property(targets, check), { numRuns: 20_000 });
  expect(refused).toBeGreaterThan(2000);
});

test('no target makes the check throw, and the path ends at the first question mark', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string({ unit: 'binary' }), fc.webPath()), (target) => void ambiguityOf(target)),
  );
  expect(pathOf('/v1/index.php?a?b')).toBe('/v1/index.php');
});
