import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ambiguityOf, lookalikesOf, pathOf, tidyReadings } from '../../src/requests/target.ts';

const areLookalikes = (a: string, b: string): boolean =>
  lookalikesOf(a).some((reading) => lookalikesOf(b).includes(reading));

describe('a path that a lenient backend takes for /v1/index.php', () => {
  test.each([
    '/v1/index.php/',
    '/v1/index.php/withdraw',
    '/V1/index.php',
    '/v1/index%2ephp',
    '/v1/index.php;x',
    '/v1;x=y/index.php',
    '/v1/index.php%3bx',
    '/v1//index.php',
    '/v1/index.php.',
    '/v1/index.php%20',
    // A backend that decodes the path before it splits off the query sees a query here.
    '/v1/index.php%3fx',
    '/v1/index.php%23x',
    // Path parameters, removed before the query and after it.
    '/v1;x%3fx/index.php',
    '/;x%3fx/v1/index.php',
    // The index of a directory, and a name without its extension.
    '/v1',
    '/v1/index',
    '/v1/index.html',
    '/v1/index.php5',
    '/v1/index.aspx',
    '/v1/default.aspx',
    // NTFS streams.
    '/v1/index.php::$DATA',
    '/v1/index.php:x',
    '/v1:$i30:$INDEX_ALLOCATION/index.php',
    // A fullwidth i, a dotless i, a capital i with a dot, a one dot leader, a no-break space.
    '/v1/%EF%BD%89ndex.php',
    '/v1/%C4%B1ndex.php',
    '/v1/%C4%B0ndex.php',
    '/v1/index%E2%80%A4php',
    '/v1/index.php%C2%A0',
  ])('%s', (path) => {
    expect(areLookalikes(path, '/v1/index.php')).toBe(true);
  });
});

test('a stream name with a question mark in it can be removed before the query', () => {
  for (const path of [
    '/v2%3a%3a$DATA%3Fx/get_balance',
    '/v2::$DATA%23/get_balance',
    '/v2::$x;y%3F/get_balance',
  ])
    expect(areLookalikes(path, '/v2/get_balance'), path).toBe(true);
});

test('a directory and its index file are lookalikes', () => {
  for (const directory of ['', '/v1', '/v1/pay']) {
    const all = ['', '/', '/index', '/index.html', '/index.php'].map((name) => `${directory}${name}` || '/');
    for (const a of all) for (const b of all) expect(areLookalikes(a, b), `${a} ${b}`).toBe(true);
  }
});

test.each([
  ['/v1/pay', '/v1/pay.php'],
  // A front controller.
  ['/v1/pay', '/index.php/v1/pay'],
  ['/v1/pay', '/v1/app.php/pay/'],
  ['/v1/pay', '/Index.php;x/v1/pay.json'],
  ['/v1/pay', '/app.fcgi/v1/pay'],
  ['/v1/pay', '/v1/pay.do;jsessionid=1'],
  ['/v1/pay', '/v1/pay.json'],
  ['/v1/pay.php', '/v1/pay.html'],
  ['/v2/get_balance', '/v2/get_balance;a%3fb/c'],
  ['/v2/get_balance', '/%3bx%23/v2/get_balance'],
  ['/v1/tasks', '/v1/tas%E2%84%AA%C5%BF'],
  ['/v1/caf%C3%A9', '/v1/CAF%c3%89'],
])('%s and %s are lookalikes', (a, b) => {
  expect(areLookalikes(a, b)).toBe(true);
});

test.each<[string, string]>([
  ['/v2/get_balance', '/v2/get_balance/x'],
  ['/v1/pay', '/v1/pay.pdf'],
  ['/v1/payments', '/v1/payments:batch'],
  ...['/v1/index.phpx', '/v1/indexes', '/v1/x', '/'].map((path): [string, string] => ['/v1/index.php', path]),
  ['/v1/methods', '/v1/methods/default'],
  ['/v1/caf%C3%A9', '/v1/cafe'],
])('%s and %s are not lookalikes', (a, b) => {
  expect(areLookalikes(a, b)).toBe(false);
});

test.each([
  ['/v1/Payments/AB%2D1/refund', ['/v1/payments/ab-1/refund']],
  ['/v1/payments;a=b/x./refund%20', ['/v1/payments/x/refund']],
  ['/v1/payments/x/refund::$DATA', ['/v1/payments/x/refund']],
  ['/v1/payments/x;a%3fb/refund', ['/v1/payments/x', '/v1/payments/x/refund']],
  ['/v1/%E2%84%AAey/%C3%89', ['/v1/key/é']],
  // lookalikesOf removes what servers add to find a file.
  ['/v1/index.php/x', ['/v1/index.php/x', '/v1/x']],
])('%s has the tidy readings %j', (path, readings) => {
  expect(tidyReadings(path)).toEqual(readings);
});

test('a character whose compatibility form or other case is ASCII is read as that', () => {
  let checked = 0;
  for (let code = 0x80; code <= 0x10ffff; code++) {
    if (code >= 0xd800 && code <= 0xdfff) continue;
    const character = String.fromCodePoint(code);
    const path = `/x${encodeURIComponent(character)}y`;
    const forms = [character.normalize('NFKC'), character.toUpperCase(), character.toLowerCase()];
    for (const form of forms.filter((text) => /^[\w-]+$/.test(text))) {
      checked++;
      expect(tidyReadings(path), path).toEqual([`/x${form.toLowerCase()}y`]);
    }
  }
  expect(checked).toBeGreaterThan(1000);
});

/** What readers do with a path before they compare it: some of these steps, in any order. */
const steps: ((path: string) => string)[] = [
  (path) => new URL(path, 'http://backend.test').pathname,
  (path) => decodeURIComponent(path),
  (path) => path.replace(/%c0%ae/gi, '.').replace(/%c0%af/gi, '/'),
  (path) => path.normalize('NFKC'),
  (path) => path.toUpperCase().toLowerCase(),
  (path) => path.replace(/;[^/]*/g, ''),
  (path) => path.replace(/:[:$][^/]*/g, ''),
  (path) => path.replace(/\/{2,}/g, '/'),
  (path) => path.replaceAll('\\', '/'),
  (path) => path.replace(/[?#].*$/s, ''),
];

/** All results of applying the steps in any order. */
function readingsOf(path: string): Set<string> {
  const all = new Set([path]);
  for (const reading of all) {
    for (const step of steps) {
      try {
        all.add(step(reading));
      } catch {
        // A reader that refuses the path does no harm.
      }
    }
  }
  return all;
}

const DECLARED = ['/v1/index.php', '/v2/get_balance', '/v1/pay_tasks.php'];

function declaredAs(path: string): string | undefined {
  for (const reading of readingsOf(path)) {
    const lower = reading.toLowerCase();
    const name = lower.replace(/[/. ]+$/, '');
    if (DECLARED.includes(name)) return name;
    const script = /^(\/v1\/(?:index|pay_tasks)\.php)[/:]/.exec(lower)?.[1];
    if (script !== undefined) return script;
    if (['/v1', '/v1/index', '/v1/index.html'].includes(name)) return '/v1/index.php';
    if (name === '/v1/pay_tasks') return '/v1/pay_tasks.php';
  }
  return undefined;
}

const slashes = ['/', '//', '\\', '%2f', '%5C', '%C0%AF', '%EF%BC%8F', '%E2%84%80'];
const dots = [
  '/.',
  '/./',
  '/../',
  '/x/../',
  '/%2e/',
  '/.%2E/',
  '.',
  '..',
  '/..',
  '%2e',
  '%C0%AE',
  '%E2%80%A4',
  '%E2%80%A5',
];
const parameters = [';', ';x', '/;x', '/.;x', '/..;x', '%3b', '%3Bx', '/%3bx', '/.%3b', '%EF%BC%9Bx'];
const queries = ['?', '?x', '#', '%3f', '%3Fx', '%23', '%EF%BC%9Fx'];
const streams = [':x', '::$DATA', ':$i30:$INDEX_ALLOCATION', '%3a%3a$DATA'];
const others = ['%252e', '%252f', '%25', '%25%36%39', '%256%39', '%00', '%0a', ' ', '%20', '%C2%A0'];
const names = ['/x', 'http://h', '/v1', '/v2', '/index', '.html', '.php'];
const odd = fc.constantFrom(...slashes, ...dots, ...parameters, ...queries, ...streams, ...others, ...names);

/** Replaces a letter with another character that some readers take for it, percent-encoded. */
const unusual = (letter: string): string => {
  const others: Record<string, string> = { k: '\u212a', s: '\u017f', i: '\u0131' };
  const fullwidth = String.fromCharCode(letter.charCodeAt(0) + 0xfee0);
  return encodeURIComponent(others[letter] ?? (/\w/.test(letter) ? fullwidth : letter));
};

/** A declared path in which characters are encoded, replaced or in the other case, with odd pieces inserted. */
const mutant = fc
  .record({
    path: fc.constantFrom(...DECLARED, '/v1/', '/v1/index'),
    changes: fc.array(fc.tuple(fc.nat(20), fc.constantFrom('encode', 'flip', 'unusual', 'keep')), {
      maxLength: 4,
    }),
    pieces: fc.array(fc.tuple(fc.nat(20), odd), { maxLength: 3 }),
  })
  .map(({ path, changes, pieces }) => {
    const letters = [...path];
    for (const [at, how] of changes) {
      const letter = letters[at % letters.length] as string;
      if (letter.length > 1 || how === 'keep') continue;
      const code = `%${letter.charCodeAt(0).toString(16)}`;
      const changed = how === 'encode' ? code : how === 'flip' ? letter.toUpperCase() : unusual(letter);
      letters[at % letters.length] = changed;
    }
    for (const [at, piece] of pieces) letters.splice(at % (letters.length + 1), 0, piece);
    return letters.join('');
  });

test('every path that a reader takes for a declared one is ambiguous or a lookalike', () => {
  let lookalikes = 0;
  const check = (target: string) => {
    const path = pathOf(target);
    // For any path it must not throw.
    lookalikesOf(path);
    const declared = declaredAs(path);
    if (declared === undefined || ambiguityOf(target) !== undefined) return;
    if (path !== declared) lookalikes++;
    expect(areLookalikes(path, declared), target).toBe(true);
  };
  fc.assert(fc.property(mutant, check), { numRuns: 8000 });
  fc.assert(fc.property(fc.string({ unit: 'binary' }), check));
  expect(lookalikes).toBeGreaterThan(500);
});
