import { test } from 'vitest';
import { parse } from 'yaml';
import { parseKeyFile } from '../../src/keys/key-file.ts';
import { expectLinear, repeated, type Sample } from './linear-time.ts';

const HASH = `hmac-sha256:${'0'.repeat(64)}`;

/** The file belongs to the operator, so it is large, but not hostile. */
test('a large key file is read in linear time', () => {
  const merchants: Sample = {
    name: 'many merchants',
    of: (chars) => {
      const lines = Array.from(
        { length: chars / 120 },
        (_, i) => `- { code: M${i}, keys: [{ id: k, hash: "${HASH}" }] }`,
      );
      return `merchants:\n${lines.join('\n')}\n`;
    },
  };
  const keys: Sample = {
    name: 'many keys of one merchant',
    of: (chars) => {
      const lines = Array.from({ length: chars / 120 }, (_, i) => `    - { id: k${i}, hash: "${HASH}" }`);
      return `merchants:\n- code: M\n  keys:\n${lines.join('\n')}\n`;
    },
  };
  const one = `merchants:\n- code: M\n  keys:\n  - id: k\n    hash: "${HASH}"\n`;
  const many = ['# a comment\n', '\n', '#', ' '].map((unit) => repeated(one, unit));
  const worst = [keys, ...many, repeated(`${one}    scopes:\n`, '    - withdraw\n')];
  const json: Sample = { name: 'JSON', of: (chars) => JSON.stringify(parse(merchants.of(chars))) };
  const read = (text: string) => parseKeyFile(Buffer.from(text));
  expectLinear(read, { harmless: merchants, worst: [json, ...worst], sizes: [16_384, 131_072] });
});
