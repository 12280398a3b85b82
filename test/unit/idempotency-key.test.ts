import { describe, expect, it } from 'vitest';
import { readKey, waitOf } from '../../src/idempotency/key.ts';

const DRAFT = 'idempotency-key';
const OURS = 'x-service-idempotency';
const read = (name: string, value: string) => readKey([name, value], [OURS, DRAFT]);

/** The draft makes the field a String of RFC 9651. Text in quotes is read as one, or refused; whatever else is a bare key. */
const strings: [text: string, key: string | undefined][] = [
  ['"k"', 'k'],
  ['"a b"', 'a b'],
  ['" k "', ' k '],
  ['"a,b"', 'a,b'],
  [String.raw`"\\\""`, '\\"'],
  [String.raw`"a\"b\\c"`, String.raw`a"b\c`],
  [String.raw`"\\n"`, String.raw`\n`],
  [`"${'x'.repeat(255)}"`, 'x'.repeat(255)],
  [`"${'\\"'.repeat(255)}"`, '"'.repeat(255)],
  // Empty, and unbalanced.
  ['""', undefined],
  ['"', undefined],
  ['"""', undefined],
  ['"a"b"', undefined],
  [String.raw`"\"`, undefined],
  [String.raw`"k\\\"`, undefined],
  // Escapes that there are not.
  [String.raw`"\n"`, undefined],
  [String.raw`"\ "`, undefined],
  // Parameters and lists: a reader who drops them and one who keeps them would see two keys.
  ['"k";a', undefined],
  ['"k"; a="b"', undefined],
  ['"k", "l"', undefined],
  ['"k",', undefined],
  ['"k" x', undefined],
  ['"k" ', undefined],
  ['"k"\\', undefined],
  // Not in a String at all.
  ['"\u00e9"', undefined],
  ['"\u0080"', undefined],
  ['"a\tb"', undefined],
  ['"a\0b"', undefined],
  ['"a\nb"', undefined],
  [`"${'x'.repeat(256)}"`, undefined],
];

/** Other types of RFC 9651: keys as they stand, for clients who never heard of the draft. */
const bare = [
  ...['a/b:c', '*k', ':YWJj:', '?1', '-1.5', '@1659578233', '%"k"', '("a" "b")', 'a=1', ';a', "'k'", 'k"l"'],
  ...['\\"k\\"', 'a, b', 'k;a=1', '8e03978e-40d5-43e8-bc93-6894a57f9324', 'x'.repeat(255)],
];

describe('Idempotency-Key', () => {
  it.each([...strings, ...bare.map((text) => [text, text] as const)])('%s', (text, key) => {
    expect(read(DRAFT, text)).toEqual(
      key === undefined ? { kind: 'invalid', reason: expect.any(String) } : { kind: 'key', key },
    );
  });
});

describe('x-service-idempotency', () => {
  it.each([...bare, '"k"', '"k";a=1', '"', '""', String.raw`"\n"`])('%s is the key, unchanged', (text) => {
    expect(read(OURS, text)).toEqual({ kind: 'key', key: text });
  });

  it.each(['', '\u00e9', 'a\tb', 'a\0b', 'k\x7f', '\u2028', 'x'.repeat(256)])('%j is none', (text) => {
    expect(read(OURS, text)).toMatchObject({ kind: 'invalid' });
  });
});

it('Prefer can only shorten the wait of a duplicate', () => {
  const waits = ['wait=1', 'respond-async, wait=0', 'Wait="0"; foo', 'wait=20', 'wait=nonsense', ''];
  expect(waits.map((prefer) => waitOf(prefer, 1500))).toEqual([1000, 0, 0, 1500, 1500, 1500]);
});
