import { describe, expect, it } from 'vitest';
import { readKey } from '../../src/idempotency/http/key.ts';

const DRAFT = 'idempotency-key';
const OURS = 'x-service-idempotency';
const read = (name: string, value: string) => readKey([name, value], [OURS, DRAFT]);

/** The draft makes the field a String of RFC 9651. Text in quotes is read as one, or refused; whatever else is a bare key. */
const strings: [text: string, key: string | undefined][] = [
  ['"k"', 'k'],
  ['"a b"', 'a b'],
  ['" k "', ' k '],
  ['" "', ' '],
  ['"a,b"', 'a,b'],
  ['"a;b=1"', 'a;b=1'],
  [String.raw`"\""`, '"'],
  [String.raw`"\\"`, '\\'],
  [String.raw`"\\\""`, '\\"'],
  [String.raw`"a\"b\\c"`, String.raw`a"b\c`],
  [String.raw`"\\n"`, String.raw`\n`],
  [`"${'x'.repeat(255)}"`, 'x'.repeat(255)],
  [`"${'\\"'.repeat(255)}"`, '"'.repeat(255)],
  // Empty, and unbalanced.
  ['""', undefined],
  ['"', undefined],
  ['"k', undefined],
  ['"""', undefined],
  ['"k""', undefined],
  ['"a"b"', undefined],
  [String.raw`"k\"`, undefined],
  [String.raw`"\"`, undefined],
  [String.raw`"k\\\"`, undefined],
  // Escapes that there are not.
  [String.raw`"\n"`, undefined],
  [String.raw`"\k"`, undefined],
  [String.raw`"\u006b"`, undefined],
  [String.raw`"\ "`, undefined],
  // Parameters and lists: a reader who drops them and one who keeps them would see two keys.
  ['"k";a', undefined],
  ['"k";a=1', undefined],
  ['"k"; a="b"', undefined],
  ['"k" ;a', undefined],
  ['"k";', undefined],
  ['"k", "l"', undefined],
  ['"k","k"', undefined],
  ['"k",', undefined],
  ['"k" "l"', undefined],
  ['"k" x', undefined],
  ['"k" ', undefined],
  ['"k"\t', undefined],
  ['"k"\\', undefined],
  // Not in a String at all.
  ['"\u00e9"', undefined],
  ['"\u00c3\u00a9"', undefined],
  ['"\u0080"', undefined],
  ['"\u00a0"', undefined],
  ['"a\tb"', undefined],
  ['"a\0b"', undefined],
  ['"a\x7fb"', undefined],
  ['"a\nb"', undefined],
  [`"${'x'.repeat(256)}"`, undefined],
];

/** Other types of RFC 9651: keys as they stand, for clients who never heard of the draft. */
const bare = [
  ...[
    'k',
    'a/b:c',
    '*k',
    ':YWJj:',
    '?1',
    '?0',
    '42',
    '-1.5',
    '@1659578233',
    '%"k"',
    '("a" "b")',
    'a=1',
    ';a',
  ],
  ...[
    "'k'",
    'k"',
    'k"l"',
    '\\"k\\"',
    'a, b',
    'k;a=1',
    '8e03978e-40d5-43e8-bc93-6894a57f9324',
    'x'.repeat(255),
  ],
];

describe('Idempotency-Key', () => {
  it.each(strings)('%s', (text, key) => {
    expect(read(DRAFT, text)).toEqual(
      key === undefined ? { kind: 'invalid', reason: expect.any(String) } : { kind: 'key', key },
    );
  });

  it.each(bare)('%s is the key', (text) => {
    expect(read(DRAFT, text)).toEqual({ kind: 'key', key: text });
  });
});

describe('x-service-idempotency', () => {
  it.each([...bare, '"k"', '"k";a=1', '"', '""', String.raw`"\n"`])('%s is the key, as it stands', (text) => {
    expect(read(OURS, text)).toEqual({ kind: 'key', key: text });
  });

  it.each(['', '\u00e9', 'a\tb', 'a\0b', 'k\x7f', '\u2028', 'x'.repeat(256)])('%j is none', (text) => {
    expect(read(OURS, text)).toMatchObject({ kind: 'invalid' });
  });
});

it('is read in a time that grows with the length of the value only', () => {
  const startedMs = performance.now();
  for (const unit of ['\\"', '\\', '"', 'a', '\\\\"']) read(DRAFT, `"${unit.repeat(200_000)}`);
  // A pattern that goes back over what it read would take hours.
  expect(performance.now() - startedMs).toBeLessThan(2000);
});
