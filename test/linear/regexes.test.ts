import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { eachRow } from '../support/each-row.ts';
import { combined, expectLinear, repeated } from './linear-time.ts';

const SRC = fileURLToPath(new URL('../../src', import.meta.url));

/** A regular expression as it is written: behind a character that an operand follows, and not a comment. */
const LITERAL =
  /(?<=[=(,:?[!&|{}]\s*|\breturn\s+)\/(?![/*])((?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\[\n])+)\/([dgimsuvy]*)(?![\w/])/g;

const withoutComments = (source: string): string => source.replace(/^\s*(?:\/\*\*|\*|\/\/).*$/gm, '');

const literals = readdirSync(SRC, { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts'))
  .flatMap((file) =>
    [...withoutComments(readFileSync(join(SRC, file), 'utf8')).matchAll(LITERAL)].map(
      ([literal, source = '', flags = '']) => ({ file, literal, regex: new RegExp(source, flags) }),
    ),
  );

/** Characters that an expression treats differently. */
function alphabetOf(source: string): string[] {
  const escapes: Record<string, string> = { d: '0', w: 'a', s: ' ', n: '\n', r: '\r', t: '\t', p: '\u2028' };
  const letters = [...source.matchAll(/\\u([0-9a-f]{4})|\\x([0-9a-f]{2})|\\(.)|([^\\()[\]{}*+?|^$])/gi)].map(
    ([, four, two, escaped, plain]) =>
      plain ??
      (escaped ? (escapes[escaped] ?? escaped) : String.fromCharCode(Number.parseInt(four ?? two ?? '', 16))),
  );
  return [...new Set(letters)];
}

/** Parts of an expression that match themselves, such as `boundary=`. */
const wordsOf = (source: string): string[] => [
  ...new Set(source.replace(/\\([^\w])/g, '$1').match(/[\w"'=:;,./ -]{2,}/g)),
];

/** More of them make no other expression slow, and the test too. */
const MOST_PARTS = 12;

function worstOf(source: string) {
  const letters = alphabetOf(source);
  const words = wordsOf(source);
  const parts = [...letters.slice(0, MOST_PARTS), ...words.slice(0, MOST_PARTS)];
  const pairs = parts.flatMap((a) => parts.filter((b) => a !== b).map((b) => `${a}${b}`));
  return combined(
    ['', ...letters.slice(0, 2), ...words.slice(0, 2)],
    [...letters, ...words, ...pairs],
    ['', '\0', '\n\0'],
  );
}

function expectLinearRegex(regex: RegExp): void {
  const parse = (text: string) => (regex.global ? text.replace(regex, '') : regex.exec(text));
  expectLinear(parse, { harmless: repeated('', '\x01'), worst: worstOf(regex.source), sizes: [4096] });
}

test('an expression that takes quadratic time is found', () => {
  for (const regex of [/[/.\s]+$/, /[?#].*$/, /\s*=\s*x/]) {
    expect(() => expectLinearRegex(regex), String(regex)).toThrow('4096 characters');
  }
});

test('every expression takes linear time', { timeout: 120_000 }, () => {
  expect(literals.length).toBeGreaterThan(60);
  eachRow(literals, ({ regex }) => expectLinearRegex(regex));
});
