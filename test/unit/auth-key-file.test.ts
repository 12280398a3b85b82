import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { parseKeyFile, parseKeyFileInThread } from '../../src/auth/key-file.ts';
import { hashSecret, KeyIndex, keyLine } from '../../src/auth/key-index.ts';

const PEPPER = 'pepper-of-the-tests';
const HASH = `hmac-sha256:${hashSecret(PEPPER, 'sk_one')}`;
const LEAK = 'sk_leak_0123456789';

const load = (text: string | Buffer, pepper?: string) => KeyIndex.of(parseKeyFile(Buffer.from(text)), pepper);
const withKeys = (...keys: string[]) => `merchants: [{ code: M, keys: [${keys.join(', ')}] }]`;
const plain = (members: string) => withKeys(`{ id: a, dangerouslyPlainSecret: sk_one, ${members} }`);

function mistakesOf(text: string | Buffer, pepper?: string): string {
  try {
    load(text, pepper);
  } catch (error) {
    return (error as Error).message;
  }
  return 'no mistake';
}

describe('a key file', () => {
  test('can give a merchant several keys, hashed and plain', () => {
    const index = load(
      withKeys(`{ id: a, hash: "${HASH}" }`, '{ id: b, dangerouslyPlainSecret: sk_two }'),
      PEPPER,
    );
    expect(index.size).toBe(2);
    expect(index.find('sk_one')).toMatchObject({ merchantCode: 'M', keyId: 'a', scopes: ['*'] });
    expect(index.find('sk_two')).toMatchObject({ merchantCode: 'M', keyId: 'b' });
    expect(index.find('sk_three')).toBeUndefined();
  });

  test('stores hashes that cannot be used to log in', () => {
    const index = load(withKeys(`{ id: a, hash: "${HASH}" }`), PEPPER);
    for (const stored of [HASH, HASH.slice('hmac-sha256:'.length)])
      expect(index.find(stored)).toBeUndefined();
  });

  test('accepts a hash in upper case', () => {
    const digest = hashSecret(PEPPER, 'sk_one').toUpperCase();
    expect(load(withKeys(`{ id: a, hash: hmac-sha256:${digest} }`), PEPPER).find('sk_one')?.keyId).toBe('a');
  });

  test('with hashes made with another pepper: no key is found', () => {
    expect(
      load(withKeys(`{ id: a, hash: "${HASH}" }`), 'another-pepper-of-the-tests').find('sk_one'),
    ).toBeUndefined();
  });

  test('can be JSON, with the same result as YAML', () => {
    const merchants = [
      {
        code: 'M',
        name: 'Straße \u2028 "A"',
        keys: [
          { id: 'a', hash: HASH, scopes: ['balance'], expiresAt: '2030-01-31T00:00:00Z' },
          { id: 'b', dangerouslyPlainSecret: 'sk_two' },
        ],
      },
    ];
    for (const json of [JSON.stringify({ merchants }), JSON.stringify({ merchants }, null, 2)]) {
      // The comment makes it YAML that is not JSON.
      const yaml = `# the keys\n${json}`;
      expect(parseKeyFile(Buffer.from(json))).toEqual(parseKeyFile(Buffer.from(yaml)));
      expect(parseKeyFile(Buffer.from(`\uFEFF${json}`))).toEqual(parseKeyFile(Buffer.from(yaml)));
    }
  });

  test.each([
    [
      'a member twice',
      '{"id":"a","id":"b","hash":"HASH"}',
      /line 1, column \d+: is not valid YAML \(duplicate key\)/,
    ],
    [
      'a member twice, once with an escape',
      '{"id":"a","\\u0069d":"b","hash":"HASH"}',
      /line 1, column \d+: is not valid YAML/,
    ],
    [
      'an unknown member',
      '{"id":"a","hash":"HASH","revokedOn":"2026-01-01T00:00:00Z"}',
      /has an unknown member/,
    ],
    ['a prototype', '{"id":"a","hash":"HASH","__proto__":{"scopes":["*"]}}', /has an unknown member/],
  ])('as JSON with %s is refused', (_, key, mistake) => {
    const text = `{"merchants":[{"code":"M","keys":[${key.replace('HASH', HASH)}]}]}`;
    expect(mistakesOf(text, PEPPER)).toMatch(mistake);
  });

  test('with plain secrets only needs no pepper', () => {
    expect(load(plain('scopes: [balance, passthrough]')).find('sk_one')?.scopes).toEqual([
      'balance',
      'passthrough',
    ]);
  });

  test.each([
    ['quoted', '"2026-05-01T00:00:00Z"'],
    ['as a YAML timestamp', '2026-05-01T00:00:00Z'],
    ['with a fraction', '2026-05-01T00:00:00.000Z'],
    ['in another zone', '2026-05-01T02:00:00+02:00'],
  ])('accepts a time %s', (_name, time) => {
    for (const head of ['', '%YAML 1.1\n---\n']) {
      const index = load(head + plain(`notBefore: ${time}`));
      expect(index.find('sk_one')?.notBeforeMs).toBe(Date.UTC(2026, 4, 1));
    }
  });

  test('without times: the key is always valid', () => {
    const always = { notBeforeMs: -Infinity, expiresAtMs: Infinity, revokedAtMs: Infinity };
    expect(load(plain('')).find('sk_one')).toMatchObject(always);
  });
});

describe('a mistake in a key file', () => {
  test.each([
    [
      'a time without a zone',
      plain('expiresAt: 2026-05-01T00:00:00'),
      'merchants[0].keys[0].expiresAt: must be a time',
    ],
    [
      'a date without a time',
      plain('expiresAt: 2026-05-01'),
      'merchants[0].keys[0].expiresAt: must be a time',
    ],
    [
      'a thirteenth month',
      plain('revokedAt: 2026-13-01T00:00:00Z'),
      'merchants[0].keys[0].revokedAt: must be a time',
    ],
    [
      'a thirteenth month in YAML 1.1',
      `%YAML 1.1\n---\n${plain('revokedAt: 2026-13-01')}`,
      'revokedAt: must be a time',
    ],
    [
      'a time that is a number',
      plain('notBefore: 20260501'),
      'merchants[0].keys[0].notBefore: must be a time',
    ],
    ['an empty time', plain('revokedAt: '), 'merchants[0].keys[0].revokedAt: must be a time'],
    [
      'a misspelt revokedAt',
      plain('revoked_at: 2026-05-01T00:00:00Z'),
      'merchants[0].keys[0]: has an unknown member',
    ],
    [
      'expiresAt not later than notBefore',
      plain('notBefore: 2026-05-01T00:00:00Z, expiresAt: 2026-05-01T00:00:00Z'),
      'expiresAt: must be later than notBefore',
    ],
    ['no scopes', plain('scopes: []'), 'merchants[0].keys[0].scopes: must name an operation'],
    ['scopes that are a string', plain('scopes: balance'), 'merchants[0].keys[0].scopes: must be a list'],
    [
      'a scope with a quote',
      plain(`scopes: ['a"b']`),
      'merchants[0].keys[0].scopes[0]: must be an operation name',
    ],
    ['neither hash nor secret', withKeys('{ id: a }'), 'merchants[0].keys[0]: must have exactly one of'],
    [
      'hash and secret',
      withKeys(`{ id: a, hash: "${HASH}", dangerouslyPlainSecret: x }`),
      'keys[0]: must have exactly one of',
    ],
    [
      'a hash by another function',
      withKeys('{ id: a, hash: "sha256:00" }'),
      'merchants[0].keys[0].hash: must be hmac-sha256:',
    ],
    [
      'a secret with a space',
      withKeys('{ id: a, dangerouslyPlainSecret: a b }'),
      'dangerouslyPlainSecret: must be 1 to 512',
    ],
    ['no id', withKeys('{ dangerouslyPlainSecret: sk_one }'), 'merchants[0].keys[0].id: must be a string'],
    [
      'an id with a space',
      withKeys('{ id: a b, dangerouslyPlainSecret: sk_one }'),
      'merchants[0].keys[0].id: must be',
    ],
    [
      'a code that is a number',
      'merchants: [{ code: 1001, keys: [] }]',
      'merchants[0].code: must be a string of 1 to 64',
    ],
    [
      'a code with a newline',
      'merchants: [{ code: "a\\nb", keys: [] }]',
      'merchants[0].code: must be a string of 1 to 64',
    ],
    [
      'a code of 65 characters',
      `merchants: [{ code: ${'x'.repeat(65)}, keys: [] }]`,
      'merchants[0].code: must be',
    ],
    [
      'the same id twice',
      withKeys('{ id: a, dangerouslyPlainSecret: x }', '{ id: a, dangerouslyPlainSecret: y }'),
      'merchants[0].keys[1].id: is the same as in [0]',
    ],
    [
      'the same code twice',
      'merchants: [{ code: M, keys: [] }, { code: M, keys: [] }]',
      'merchants[1].code: is the same as in [0]',
    ],
    [
      'the same secret twice',
      withKeys('{ id: a, dangerouslyPlainSecret: x }', '{ id: b, dangerouslyPlainSecret: x }'),
      'merchants[0].keys[1]: is the same secret key as merchants[0].keys[0]',
    ],
    ['a list in place of the mapping', '[]', 'the file: must be a mapping'],
    ['an empty file', '', 'the file: must be a mapping'],
    ['a mapping in place of the list', 'merchants: {}', 'merchants: must be a list of merchants'],
    ['no keys', 'merchants: [{ code: M }]', 'merchants[0].keys: must be a list of keys'],
    ['broken YAML', 'merchants:\n  - code: a: b', 'line 2, column 11: is not valid YAML'],
    ['a member twice', plain('id: b'), 'is not valid YAML (duplicate key)'],
    ['an unknown tag', 'merchants: !x []', 'is not valid YAML (tag resolve failed)'],
    [
      'a later format',
      'format: 2\nmerchants: []',
      'format: is a format that this version of oncegate does not',
    ],
    ['two documents', 'merchants: []\n---\nmerchants: []', 'is not valid YAML (multiple docs)'],
    [
      'an alias without an anchor',
      'merchants: *a',
      'the file: has too many aliases, or an alias without an anchor',
    ],
    ['an alias of itself', 'merchants: &a [*a]', 'merchants[0]: must be a mapping'],
    ['bytes that are not UTF-8', Buffer.from('merchants: [] # \xff', 'latin1'), 'the file: is not UTF-8'],
  ])('%s', (_name, text, expected) => {
    expect(mistakesOf(text, PEPPER)).toContain(expected);
  });

  test('the same secret key for two merchants, once hashed and once plain', () => {
    const text = `merchants:
      - { code: A, keys: [{ id: a, hash: "${HASH}" }] }
      - { code: B, keys: [{ id: a, dangerouslyPlainSecret: sk_one }] }`;
    expect(mistakesOf(text, PEPPER)).toBe(
      'merchants[1].keys[0]: is the same secret key as merchants[0].keys[0]',
    );
  });

  test('a hash without a pepper', () => {
    const text = withKeys('{ id: a, dangerouslyPlainSecret: x }', `{ id: b, hash: "${HASH}" }`);
    expect(mistakesOf(text)).toBe(
      'merchants[0].keys[1].hash: cannot be checked without a pepper; set auth.pepper',
    );
  });

  test('aliases that expand exponentially', () => {
    const nine = (name: string) => `[${Array.from({ length: 9 }, () => name).join(', ')}]`;
    const levels = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'];
    const lines = levels.map((name, i) => `${name}: &${name} ${nine(i === 0 ? 'x' : `*${levels[i - 1]}`)}`);
    expect(mistakesOf(lines.join('\n'))).toBe(
      'the file: has too many aliases, or an alias without an anchor',
    );
  });

  test('is reported with all others, one line each, up to 20 lines', () => {
    const keys = Array.from({ length: 1000 }, (_, i) => `{ id: k${i} }`);
    const lines = mistakesOf(withKeys(...keys)).split('\n');
    expect(lines).toHaveLength(21);
    expect(lines.at(-1)).toBe('and 980 more');
  });

  test.each([
    ['as a hash', withKeys(`{ id: a, hash: ${LEAK} }`)],
    ['as a hash with a valid prefix', withKeys(`{ id: a, hash: hmac-sha256:${LEAK} }`)],
    ['as a secret with a space', withKeys(`{ id: a, dangerouslyPlainSecret: "${LEAK} x" }`)],
    ['in a list', withKeys(`{ id: a, dangerouslyPlainSecret: [${LEAK}] }`)],
    ['as a member name', withKeys(`{ id: a, ${LEAK} }`)],
    ['as a member name with a value', withKeys(`{ id: a, ${LEAK}: x }`)],
    ['as a time', plain(`expiresAt: ${LEAK}`)],
    ['as a scope', plain(`scopes: ["${LEAK} x"]`)],
    ['as an id', withKeys(`{ id: "${LEAK} x", dangerouslyPlainSecret: x }`)],
    [
      'in two keys',
      withKeys(`{ id: a, dangerouslyPlainSecret: ${LEAK} }`, `{ id: b, dangerouslyPlainSecret: ${LEAK} }`),
    ],
    ['as an alias', withKeys(`{ id: a, dangerouslyPlainSecret: *${LEAK} }`)],
    ['as a tag', withKeys(`{ id: a, dangerouslyPlainSecret: !${LEAK} x }`)],
    ['in a list as a member name', withKeys(`{ id: a, ? [${LEAK}] : x }`)],
    ['before broken YAML', `${withKeys(`{ id: a, dangerouslyPlainSecret: ${LEAK} }`)}]`],
    ['in an unterminated string', `merchants:\n- "${LEAK}`],
    ['as a bad escape', `merchants: "\\q${LEAK}"`],
    ['as the whole file', LEAK],
    ['as a directive', `%${LEAK}\n---\nmerchants: 1`],
    ['as a duplicate member', `{ ${LEAK}: 1, ${LEAK}: 2 }`],
  ])('is reported without quoting a secret: %s', (_name, text) => {
    const message = mistakesOf(text, PEPPER);
    expect(message).not.toBe('no mistake');
    expect(message).not.toContain(LEAK);
  });
});

describe('a key file parsed in another thread', () => {
  test('has the same result', async () => {
    const bytes = Buffer.from(plain('expiresAt: 2026-05-01T00:00:00Z'));
    expect(await parseKeyFileInThread(bytes)).toEqual(parseKeyFile(bytes));
  });

  test('has the same mistakes', async () => {
    const text = plain('expiresAt: never');
    await expect(parseKeyFileInThread(Buffer.from(text))).rejects.toThrow(mistakesOf(text));
  });
});

describe('a line for the key file', () => {
  test('contains only the hash, and the gateway accepts the secret key with it', () => {
    const line = keyLine({ id: '2026-04', secret: 'sk_new', pepper: PEPPER, scopes: ['balance', '*'] });
    expect(line).toMatch(
      /^- \{ id: "2026-04", hash: "hmac-sha256:[0-9a-f]{64}", scopes: \["balance", "\*"\] \}$/,
    );
    const index = load(`merchants:\n  - code: M\n    keys:\n      ${line}\n`, PEPPER);
    expect(index.find('sk_new')).toMatchObject({ keyId: '2026-04', scopes: ['balance', '*'] });
  });

  test('has no scopes unless they are given', () => {
    expect(keyLine({ id: 'a', secret: 'sk', pepper: PEPPER })).toMatch(/^- \{ id: "a", hash: "[^"]+" \}$/);
  });

  test.each([
    [{ id: 'a b', secret: 'sk' }, 'id: must be'],
    [{ id: 'a", x: "', secret: 'sk' }, 'id: must be'],
    [{ id: 'a', secret: 'sk', scopes: [] }, 'scopes: must name'],
    [{ id: 'a', secret: 'with space' }, 'cannot be sent as a bearer token'],
    [{ id: 'a', secret: '' }, 'cannot be sent as a bearer token'],
  ])('is refused for %j', (input, expected) => {
    expect(() => keyLine({ ...input, pepper: PEPPER })).toThrow(expected);
  });
});

test('the example file parses', () => {
  const text = readFileSync(new URL('../../config/keys.example.yaml', import.meta.url));
  const file = parseKeyFile(text);
  expect(file.merchants.map(({ code, keys }) => [code, keys.length])).toEqual([
    ['M-1001', 2],
    ['M-1002', 1],
  ]);
  expect(KeyIndex.of(file, PEPPER).size).toBe(3);
});
