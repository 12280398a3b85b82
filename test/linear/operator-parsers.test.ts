import { Redis } from 'ioredis';
import { onTestFinished, test } from 'vitest';
import { parse } from 'yaml';
import { parseKeyFile } from '../../src/auth/key-file.ts';
import { checkResolution } from '../../src/idempotency/doubt/desk.ts';
import { type ListAccess, listRecords } from '../../src/idempotency/stores/redis/operators.ts';
import { ResponseCipher } from '../../src/idempotency/stores/response-cipher.ts';
import { openForWriting } from '../../src/idempotency/stores/sqlite/database.ts';
import { ListReader } from '../../src/idempotency/stores/sqlite/operators.ts';
import { combined, expectLinear, repeated, type Sample } from '../support/linear-time.ts';

/** In characters: Node's limit of a request's head, and more. */
const CURSORS = [16_384, 262_144];
const BODIES = [65_536, 1_048_576];

const cursors = {
  harmless: repeated('all-', '1'),
  worst: combined(
    ['', 'all-', 'open-', 'rest-1', Buffer.from(' 0 ').toString('base64url')],
    ['1', ' ', '-', 'all-', 'A', '=', 'IA', '\n', '\u00e9'],
    ['', 'x', '\n'],
  ),
  sizes: CURSORS,
};

test('a cursor is read in linear time by the SQLite store', () => {
  const database = openForWriting(':memory:');
  onTestFinished(() => database.close());
  const reader = new ListReader(database, new ResponseCipher(), () => ({ runningMs: 0, wallMs: 0 }) as never);
  expectLinear((cursor) => reader.page({ inDoubt: false, limit: 1, cursor }).catch(() => {}), cursors);
});

test('a cursor is read in linear time by the Redis store', () => {
  // The client never connects, because the cursor is decoded first.
  const client = new Redis({ lazyConnect: true, enableOfflineQueue: false, maxRetriesPerRequest: 0 });
  onTestFinished(() => client.disconnect());
  const access = { commands: { client } } as unknown as ListAccess;
  expectLinear(
    (cursor) => listRecords(access, { inDoubt: false, limit: 1, cursor }).catch(() => {}),
    cursors,
  );
});

test('a resolution is checked in linear time', () => {
  const texts = combined(
    ['', ' '],
    ['a', ' ', '\t', '\n', '\u00a0', '\u2028', '"', '\u{1f600}'],
    ['', '\0', 'x'],
  );
  const resolution = { scope: '', by: 'me', reason: 'x', as: 'completed', status: 200 } as const;
  const check = (text: string) => [
    checkResolution({ ...resolution, reason: text }, 1),
    checkResolution({ ...resolution, by: text }, 1),
    checkResolution({ ...resolution, headers: [text, text] }, 1),
    checkResolution({ ...resolution, headers: ['x', text] }, 1),
    checkResolution({ ...resolution, body: text }, 1),
  ];
  expectLinear(check, { harmless: repeated('', 'reason '), worst: texts, sizes: BODIES });
});

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
