import type { IncomingMessage } from 'node:http';
import { test } from 'vitest';
import { endToEndHeaders, forwardedHeaders } from '../../src/backend/headers.ts';
import { readKey, waitOf } from '../../src/idempotency/key.ts';
import { readBearer } from '../../src/keys/authorization-header.ts';
import { findClient, trustOf } from '../../src/requests/client-address.ts';
import { answerFields, hasField, writable } from '../../src/requests/fields.ts';
import { addHop } from '../../src/requests/hops.ts';
import { matchOptions } from '../../src/requests/match-options.ts';
import { Operations } from '../../src/requests/operations.ts';
import { ambiguityOf, lookalikesOf, tidyReadings } from '../../src/requests/target.ts';
import { loggablePath } from '../../src/telemetry/logger.ts';
import { combined, expectLinear, repeated, type Sample } from './linear-time.ts';

/** Lengths in characters: the default limit of a request's head, and a generous one. */
const HEADS = [16_384, 65_536];

/** ICU sorts these marks: those of the second half belong before those of the first. */
const unsortedMarks: Sample = {
  name: 'combining marks in the wrong order',
  of: (chars) => `/a${'%CC%81'.repeat(chars / 12)}${'%CC%A3'.repeat(chars / 12)}`,
};

const targets = {
  harmless: repeated('/v1', '/caf%C3%A9'),
  worst: [
    unsortedMarks,
    ...combined(
      ['/'],
      [
        ...['/', '.', '/.', '/..', '/a', 'a', '%', '%a', '?', '#', '\\', ';', '/;', ';x', '/;x', ':$', '/:$'],
        ...['%20', '%2e', '.%20', '%25', '%3f', '%3f%0a', '%0a', '%3b', '%C0%AE', '%CC%81', 'a%CC%81'],
        ...['%E2%84%AA', '%C5%BF', '%C4%B0', '%E2%80%A4', '%E2%80%A5', '%EF%B7%BA', '%F0%9D%92%9C', '%CE%A3'],
        ...['/index', 'index.', '/index.', '/index.php', '/index.ph', '.php', '.p', '.php:', '/default.'],
      ],
      ['', 'x', '%', '%0ax'],
    ),
  ],
  sizes: HEADS,
};

test.each([
  ['ambiguityOf', ambiguityOf],
  ['lookalikesOf', lookalikesOf],
  ['tidyReadings', tidyReadings],
  ['loggablePath', loggablePath],
])('%s reads a target in linear time', (_name, parse) => {
  expectLinear(parse, targets);
});

const PATTERNS = ['/v1/:id/refund', '/*a/b/*c', '/:a.:b.:c', '/v1{/:a}{/:b}/z'];

test.each(PATTERNS)('a target is matched against the pattern %s in linear time', (path) => {
  const idempotency = { key: 'optional', inDoubt: 'hold', waitMs: 0, release: [], unknown: [] } as const;
  const match = matchOptions.parse({ method: 'POST', path });
  const operations = new Operations([{ name: 'a', match, idempotency }], {
    idempotency,
    undeclared: 'protect',
  });
  const parts = ['/', 'a', '-', '.', 'a/', 'a-', 'a.', '/b', '/b/', '-b-', '/refund'];
  expectLinear((url) => operations.matchHead({ url, method: 'POST', headers: {} } as IncomingMessage), {
    ...{
      harmless: repeated('/', 'caf%C3%A9'),
      worst: combined(['/v1', '/'], parts, ['', '!', '%0a']),
      sizes: HEADS,
    },
  });
});

const forwarding = {
  keyHeaders: ['idempotency-key'],
  requestId: 'r',
  merchantCode: 'M',
  client: { address: '::1', proxies: [], isPeerTrusted: true },
  authorization: (value: string) => value,
  keepUnderscore: [],
};

const trust = trustOf(['loopback', '192.0.2.0/24']);

type Fields = string[];

/** A field for each line of the text, which is its value, or its name. */
const valuesOfName =
  (name: string) =>
  (text: string): Fields =>
    text.split('\n').flatMap((value) => [name, value]);
const names = (text: string): Fields => text.split('\n').flatMap((name) => [name, 'x']);

const NOMINATED = combined(
  ['', 'close'],
  [',', 'a,', ' ,', ' ', '\t', 'content-', 'content-,', 'x', 'a, b\n', 'close\n'],
  ['', '\u00e9'],
);
const NAMES = combined(
  ['', 'Connection\n', 'Content-Disposition\n'],
  ['abcd\n', 'a', 'connection\n', 'content-length\n', 'x-forwarded-for\n', 'x_y\n', '-', 'host\n'],
  ['', '_'],
);

const headers: [
  name: string,
  parse: (fields: Fields) => unknown,
  prepare: (text: string) => Fields,
  worst: Sample[],
][] = [
  [
    'readBearer',
    readBearer,
    valuesOfName('Authorization'),
    combined(
      ['', 'Bearer', 'Bearer '],
      [' ', 'a', '=', 'a=', ' a', '~+/', '\t', 'Bearer a\n'],
      ['', '!', '=', ' '],
    ),
  ],
  [
    'readKey',
    (fields) => readKey(fields, ['idempotency-key', 'x-key']),
    valuesOfName('Idempotency-Key'),
    combined(
      ['', '"', '"\\'],
      ['\\"', '\\', '"', 'a', '\\\\"', ' ', '\u00e9', ';', '" ', '"k"\n'],
      ['', '"', '\\"', '!'],
    ),
  ],
  [
    'waitOf',
    ([, value = '']) => waitOf(value, 1000),
    (text) => ['Prefer', text],
    combined(
      ['', 'wait', 'wait=', 'wait="', 'wait=1'],
      [
        ...[' ', '\t', '=', '"', '1', ';', ', ', 'wait', 'wait ', 'wait=', 'wait=1', 'wait=1 ', ' wait=1 x'],
        ...[',wait = "', ';wait=1"', ' wait'],
      ],
      ['', '!', 'x', '=x', '"x'],
    ),
  ],
  [
    'addHop',
    ([, field]) => addHop({ headers: { 'oncegate-hops': field } } as unknown as IncomingMessage, 'a;0'),
    (text) => ['oncegate-hops', text],
    combined(['', 'a;', 'a;0'], [' ', ',', 'a', '0', ';', ', ', 'a;0,', `a;${'0'.repeat(16)}, `], ['', '!']),
  ],
  [
    'forwardedHeaders, and what Connection names,',
    (fields) => forwardedHeaders(fields, forwarding),
    valuesOfName('Connection'),
    NOMINATED,
  ],
  ['forwardedHeaders', (fields) => forwardedHeaders(fields, forwarding), names, NAMES],
  [
    'findClient',
    (rawHeaders) =>
      findClient({ socket: { remoteAddress: '::1' }, rawHeaders } as unknown as IncomingMessage, trust),
    valuesOfName('X-Forwarded-For'),
    combined(
      ['', 'a,'],
      ['::1', '::1,', ',', ' ', '::1, ', '::ffff:', '127.0.0.1,', '1.', '::1\n'],
      ['', '!'],
    ),
  ],
  ['endToEndHeaders, and what Connection names,', endToEndHeaders, valuesOfName('Connection'), NOMINATED],
  ['endToEndHeaders', endToEndHeaders, names, NAMES],
  ['hasField', (fields) => hasField(fields, 'host'), names, NAMES],
  ['writable', writable, names, NAMES],
  ['answerFields', (fields) => answerFields(fields, 'r', 'r'), names, NAMES],
];

test.each(headers)('%s reads headers in linear time', (_name, parse, prepare, worst) => {
  expectLinear(parse, {
    prepare,
    harmless: repeated('Content-Disposition\n', 'x-abc-1\n'),
    worst,
    sizes: HEADS,
  });
});
