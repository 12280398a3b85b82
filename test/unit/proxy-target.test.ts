import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { DeclaredOperation } from '../../src/operations/operations.ts';
import { Operations } from '../../src/operations/operations.ts';
import { ambiguityOf, lookalikesOf, pathOf } from '../../src/operations/target.ts';

const idempotency = { key: 'optional', inDoubt: 'hold', waitMs: 0, release: [], unknown: [] } as const;
const declared: DeclaredOperation[] = [
  {
    name: 'balance',
    match: { method: 'GET', path: '/v2/get_balance', unreadableBody: 'refuse' },
    idempotency,
  },
  {
    name: 'withdraw',
    match: { method: 'POST', path: '/v1/index.php', body: { action: 'withdraw' }, unreadableBody: 'refuse' },
    idempotency,
  },
];
const operations = new Operations(declared);

/** Does the gateway take the target for somebody else's business? */
const slipsThrough = (target: string): boolean =>
  ambiguityOf(target) === undefined && operations.byHead('POST', target).kind === 'none';

describe('a target that can be read in two ways', () => {
  test.each([
    ['http://evil.test/v1/index.php', 'no origin form'],
    ['*', 'no origin form'],
    ['', 'no origin form'],
    ['v1/index.php', 'no origin form'],
    ['evil.test:443', 'no origin form'],
    ['/v1/index.php#x', 'a fragment'],
    ['/v1?a#b', 'a fragment'],
    ['//evil.test/v1', 'an empty segment'],
    ['/v1//index.php', 'an empty segment'],
    ['/;x/x/v1/index.php', 'an empty segment'],
    ['/%3bx/x/v1/index.php', 'an empty segment'],
    ['/v1/;x/y', 'an empty segment'],
    ['/.', 'a dot segment'],
    ['/v1/.', 'a dot segment'],
    ['/v1/..', 'a dot segment'],
    ['/v1/./index.php', 'a dot segment'],
    ['/x/../v1/index.php', 'a dot segment'],
    ['/x/%2e%2E/v1/index.php', 'a dot segment'],
    ['/x/.%2e/v1', 'a dot segment'],
    ['/x/..;a=b/v1', 'a dot segment'],
    ['/x/..%3ba=b/v1', 'a dot segment'],
    ['/x/..%3fa=b', 'a dot segment'],
    ['/x/.%23a', 'a dot segment'],
    ['/v1\\index.php', 'a backslash'],
    ['/v1%2findex.php', 'an encoded slash'],
    ['/v1%2Findex.php', 'an encoded slash'],
    ['/v1%5cindex.php', 'an encoded slash, backslash'],
    ['/v1/index.php%00', 'NUL'],
    ['/v1/index.php%00.txt', 'NUL'],
    ['/v1/%zz', 'a percent sign'],
    ['/v1/%', 'a percent sign'],
    ['/v1/%2', 'a percent sign'],
    ['/v1/%252e', 'a character encoded twice'],
    ['/v1/%2569ndex.php', 'a character encoded twice'],
    ['/v1/%25%36%39ndex.php', 'a character encoded twice'],
    ['/v1/%256%39ndex.php', 'a character encoded twice'],
    ['/v1/index.php%0a', 'a control character'],
    ['/v1/index.php%7F', 'a control character'],
    ['/v1/índex.php', 'not printable ASCII'],
    ['/v1/index.php\t', 'not printable ASCII'],
    ['/v1/index php', 'not printable ASCII'],
  ])('%s', (target, reason) => {
    expect(ambiguityOf(target)).toContain(reason);
  });

  test.each([
    '/',
    '/v1/index.php',
    '/v1/index.php?next=//evil.test/../x%2f%00\\',
    '/a.b/..c/.well-known/...',
    '/%20/%41/~user/@x:y,z;p=1',
    '/v2/get_balance?',
  ])('is not %s', (target) => {
    expect(ambiguityOf(target)).toBeUndefined();
  });
});

describe('a path that a lenient backend takes for a declared one', () => {
  test.each([
    '/v1/index.php/',
    '/v1/index.php/withdraw',
    '/v1/index.php/a/b.php/c',
    '/V1/index.php',
    '/v1/INDEX.PHP',
    '/v1/index%2ephp',
    '/v1/%69ndex.php',
    '/%761/index.php',
    '/v1/index.php;x',
    '/v1;x=y/index.php',
    '/v1/index.php;x/withdraw',
    '/v1/index.php%3bx',
    '/v1/index.php.',
    '/v1/index.php%20',
    '/v1/index%2Ephp/withdraw?action=withdraw',
    '/v2/get_balance/',
    '/v2/Get_Balance',
    '/v2/get%5fbalance',
    // A path parameter is a whole segment: without it there is an empty one.
    '/v1/;x/index.php',
    '/;x/v1/index.php',
    // The segment is a dot once its parameter, written in another way, is off.
    '/v1/.%3bx/index.php',
    '/x/..%3bx/v1/index.php',
    // What is decoded before it is taken apart has a query here.
    '/v1/index.php%3fx',
    '/v1/index.php%3Faction=withdraw',
    '/v1/index.php%23x',
    // Path parameters that are taken off before the query, and after it.
    '/v1;x%3fx/index.php',
    '/;x%3fx/v1/index.php',
    '/v2/get_balance;a%3fb/c',
    '/%3bx%23/v2/get_balance',
  ])('%s does not slip through', (target) => {
    expect(slipsThrough(target)).toBe(false);
  });

  test.each([
    '/v1/index.phpx',
    '/v1/index',
    '/v1/index.php5',
    '/v10/index.php',
    '/v2/get_balance/x',
    '/v3/echo',
  ])('%s is another one', (target) => {
    expect(slipsThrough(target)).toBe(true);
  });

  test('is refused under every method', () => {
    for (const method of ['GET', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'HEAD']) {
      expect(operations.byHead(method, '/V1/index.php').kind).toBe('lookalike');
    }
  });

  test('is none where it is spelt as declared, and so is its query', () => {
    expect(operations.byHead('POST', '/v1/index.php?x=/V1/').kind).toBe('by_body');
    expect(operations.byHead('GET', '/v2/get_balance').kind).toBe('operation');
    expect(pathOf('/v1/index.php?a?b')).toBe('/v1/index.php');
    expect(new Set(lookalikesOf('/v1/index.php'))).toEqual(new Set(['/v1/index.php']));
  });
});

/** What readers do with a path before they compare it. Each takes one step, in whatever order. */
const steps: ((path: string) => string)[] = [
  (path) => new URL(path, 'http://backend.test').pathname,
  (path) =>
    path.replace(/%[0-7][0-9a-f]/gi, (code) => String.fromCharCode(Number.parseInt(code.slice(1), 16))),
  (path) => path.replace(/;[^/]*/g, ''),
  (path) => path.replace(/\/{2,}/g, '/'),
  (path) => path.replaceAll('\\', '/'),
  (path) => path.replace(/[?#].*$/s, ''),
];

/** All readings of a path that the steps lead to. */
function readings(path: string): Set<string> {
  const all = new Set([path]);
  for (const reading of all) {
    for (const step of steps) {
      try {
        all.add(step(reading));
      } catch {
        // A reader that refuses does no harm.
      }
    }
  }
  return all;
}

function isReadAsDeclared(path: string): boolean {
  return [...readings(path)].some((reading) => {
    const lower = reading.toLowerCase();
    return (
      lower.replace(/[/. ]+$/, '') === '/v2/get_balance' || /^\/v1\/index\.php(?:$|\/|[. ]+$)/.test(lower)
    );
  });
}

const odd = fc.constantFrom(
  ...[
    '/',
    '//',
    '/.',
    '/./',
    '/../',
    '/x/../',
    '/%2e/',
    '/.%2E/',
    '\\',
    '%2f',
    '%5C',
    '%00',
    '%0a',
    ' ',
    '%20',
  ],
  ...[
    ';',
    ';x',
    '/;x',
    '/.;x',
    '/..;x',
    '%3b',
    '%3Bx',
    '/%3bx',
    '/.%3b',
    '?',
    '?x',
    '#',
    '%3f',
    '%3Fx',
    '%23',
  ],
  ...['.', '..', '/..', '%2e', '%252f', '%25', '%25%36%39', '%256%39', '/x', 'http://h', '/v1', '/v2'],
);

/** A declared path with characters encoded, in the other case, and odd pieces put in between. */
const mutant = fc
  .record({
    path: fc.constantFrom('/v1/index.php', '/v2/get_balance'),
    changes: fc.array(fc.tuple(fc.nat(20), fc.constantFrom('encode', 'flip', 'keep')), { maxLength: 4 }),
    pieces: fc.array(fc.tuple(fc.nat(20), odd), { maxLength: 3 }),
  })
  .map(({ path, changes, pieces }) => {
    const letters = [...path];
    for (const [at, how] of changes) {
      const letter = letters[at % letters.length] as string;
      if (letter.length > 1 || how === 'keep') continue;
      const code = `%${letter.charCodeAt(0).toString(16)}`;
      letters[at % letters.length] = how === 'encode' ? code : letter.toUpperCase();
    }
    for (const [at, piece] of pieces) letters.splice(at % (letters.length + 1), 0, piece);
    return letters.join('');
  });

test('nothing that some reader takes for a declared path slips through', () => {
  let declaredOnes = 0;
  const check = (target: string) => {
    const path = pathOf(target);
    if (declared.some(({ match }) => match.path === path) || !isReadAsDeclared(path)) return;
    declaredOnes++;
    expect(slipsThrough(target), target).toBe(false);
  };
  fc.assert(fc.property(mutant, check), { numRuns: 4000 });
  expect(declaredOnes).toBeGreaterThan(500);
});

test('no target makes the check throw', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string({ unit: 'binary' }), fc.webUrl(), mutant), (target) => {
      ambiguityOf(target);
      operations.byHead('POST', target);
    }),
  );
});
