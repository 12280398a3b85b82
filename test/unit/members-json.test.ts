import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { DUPLICATE, membersOfJson, readJson, unclear } from '../support/members.ts';

describe('a JSON body that is one object', () => {
  test.each([
    '{}',
    '{"action":"withdraw","amount":10.5,"to":{"action":"x"},"list":[{"a":1},{"a":2}]}',
    '{"a":"\\"a\\":1","b":"{\\"b\\":2}","c":"}\\\\"}',
    '{"":0,"a":null,"b":true,"c":-0.0e-7,"ä€😀":"\\ud83d\\ude00"}',
    '{"é":1,"e\\u0301":2}',
    // Only the members in its text, and numbers beyond the range of a double.
    '{"__proto__":{"action":"x"},"constructor":1e400,"hasOwnProperty":-1e-400}',
  ])('%s', (json) => {
    expect(readJson(json)).toEqual(membersOfJson(json));
  });

  test('may be deeply nested and have a long text', () => {
    const deep = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`;
    expect(readJson(deep)).toHaveProperty('members.0.name', 'a');
    const objects = `${'{"a":'.repeat(5000)}1${'}'.repeat(5000)}`;
    expect(readJson(objects)).toHaveProperty('members.0.name', 'a');
    const text = `${'x'.repeat(8_000_000)}${'\\"'.repeat(1_000_000)}`;
    expect(readJson(`{"a":"${text}"}`)).toHaveProperty('members.0.name', 'a');
  });
});

describe('a JSON body with a duplicate member is unclear', () => {
  test.each([
    '{"action":"withdraw","action":"balance"}',
    '{"action":"withdraw","b":{"c":[1,{}]},"action":"x"}',
    '{"action":"x","\\u0061ction":"withdraw"}',
    '{"\\u0061\\u0063tion":"x","\\u0061c\\u0074ion":"withdraw"}',
    '{"\\ud83d\\ude00":1,"😀":2}',
    '{"\\"":1,"\\u0022":2}',
    '{"":1,"":2}',
    '{"__proto__":1,"__proto__":2}',
    '{"a" :1,"a"\n\t:2}',
    '{"a":[1,[{"b":{"c":1,"c":2}}]]}',
    '{"a":{"a":1},"b":2,"a":3}',
  ])('%s', (json) => {
    expect(readJson(json)).toEqual(DUPLICATE);
  });
});

describe('a body that is not an object, not JSON or not UTF-8 is unclear', () => {
  test.each(['[]', '[{"action":"withdraw"}]', '"action"', '1', 'null', 'true'])('%s', (json) => {
    expect(readJson(json)).toEqual(unclear('its body is not a JSON object'));
  });

  test.each([
    ' ',
    '{"a":1}}',
    '{"a":1}{"a":2}',
    '{a:1}',
    "{'a':1}",
    '{"a":NaN}',
    '{"a":1}\0',
    '{"a":"\n"}',
    'action=withdraw&amount=10',
    '--x\r\nContent-Disposition: form-data; name="action"\r\n\r\nwithdraw\r\n--x--',
    '\u00a0{"a":1}',
    '\ufeff{"a":1}',
  ])('%j', (text) => {
    expect(readJson(text)).toEqual(unclear('its body is not valid JSON'));
  });

  test.each([
    ['a byte of Latin-1', [0xe9]],
    ['an overlong quote', [0xc0, 0xa2]],
    ['an encoded surrogate', [0xed, 0xa0, 0x80]],
    ['a truncated sequence', [0xe2, 0x82]],
    ['a code point beyond Unicode', [0xf4, 0x90, 0x80, 0x80]],
    ['a byte that UTF-8 never uses', [0xff]],
  ])('%s', (_name, bytes) => {
    const body = Buffer.concat([Buffer.from('{"a":"'), Buffer.from(bytes), Buffer.from('"}')]);
    expect(readJson(body)).toEqual(unclear('its body is not valid UTF-8'));
  });
});

/**
 * A JSON value with its members as a list, so that a member can occur twice. No name ends with a backslash: JSON.parse of
 * Node 24.21 reads `"x\""` as `x\` if it has parsed an object with a member of that name before. That bug cannot affect the
 * gateway, because the name of no operation's member ends with a quote.
 */
type Tree = string | number | null | Tree[] | { members: [name: string, value: Tree][] };

const trees = fc.letrec<{ tree: Tree; object: Tree }>((tie) => ({
  tree: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.oneof(fc.string(), fc.integer(), fc.constant(null)),
    fc.array(tie('tree'), { maxLength: 3 }),
    tie('object'),
  ),
  object: fc.record({
    members: fc.array(fc.tuple(fc.constantFrom('a', 'b', 'action', '"', 'é', '{', '😀'), tie('tree')), {
      maxLength: 4,
    }),
  }),
}));

/** Serializes a tree, and escapes every `nth` letter of every other name. */
function write(tree: Tree, nth: number): string {
  if (Array.isArray(tree)) return `[${tree.map((item) => write(item, nth)).join(' , ')}]`;
  if (tree === null || typeof tree !== 'object') return JSON.stringify(tree);
  const escaped = (name: string) =>
    [...Array(name.length).keys()]
      .map((i) =>
        i % nth === 0
          ? `\\u${name.charCodeAt(i).toString(16).padStart(4, '0')}`
          : JSON.stringify(name.charAt(i)).slice(1, -1),
      )
      .join('');
  return `{${tree.members.map(([name, value], i) => `"${i % 2 ? escaped(name) : JSON.stringify(name).slice(1, -1)}" : ${write(value, nth)}`).join(',')}}`;
}

function repeats(tree: Tree): boolean {
  if (tree === null || typeof tree !== 'object') return false;
  if (Array.isArray(tree)) return tree.some(repeats);
  const names = tree.members.map(([name]) => name);
  return new Set(names).size < names.length || tree.members.some(([, value]) => repeats(value));
}

test('every object is read as by JSON.parse, unless it has a duplicate member', () => {
  fc.assert(
    fc.property(trees.object, fc.integer({ min: 1, max: 4 }), (tree, nth) => {
      const json = write(tree, nth);
      expect(readJson(json)).toEqual(repeats(tree) ? DUPLICATE : membersOfJson(json));
    }),
    { numRuns: 2000 },
  );
});
