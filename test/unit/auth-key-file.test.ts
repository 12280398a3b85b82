import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { parseKeyFile, parseKeyFileAside } from '../../src/keys/key-file.ts';
import { hashOf, hashSecret, KeyIndex, keyLine } from '../../src/keys/key-index.ts';
import { eachRow } from '../support/each-row.ts';

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

  test('has hashes in either case, which are no secret keys, and which another pepper did not make', () => {
    const hashed = (hash: string, pepper = PEPPER) => load(withKeys(`{ id: a, hash: "${hash}" }`), pepper);
    for (const notSent of [HASH, HASH.slice('hmac-sha256:'.length)])
      expect(hashed(HASH).find(notSent)).toBeUndefined();
    const digest = hashSecret(PEPPER, 'sk_one').toUpperCase();
    expect(hashed(`hmac-sha256:${digest}`).find('sk_one')?.keyId).toBe('a');
    expect(hashed(HASH, 'another-pepper-of-the-tests').find('sk_one')).toBeUndefined();
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

  test('as JSON with a member twice, or with one that there is not, is refused', () => {
    const keys: [key: string, mistake: RegExp][] = [
      ['{"id":"a","id":"b","hash":"HASH"}', /line 1, column \d+: is not valid YAML \(duplicate key\)/],
      ['{"id":"a","\\u0069d":"b","hash":"HASH"}', /line 1, column \d+: is not valid YAML/],
      ['{"id":"a","hash":"HASH","revokedOn":"2026-01-01T00:00:00Z"}', /has an unknown member/],
      ['{"id":"a","hash":"HASH","__proto__":{"scopes":["*"]}}', /has an unknown member/],
    ];
    for (const [key, mistake] of keys) {
      const text = `{"merchants":[{"code":"M","keys":[${key.replace('HASH', HASH)}]}]}`;
      expect(mistakesOf(text, PEPPER)).toMatch(mistake);
    }
  });

  test.each([
    ['quoted', '"2026-05-01T00:00:00Z"'],
    ['as a YAML timestamp', '2026-05-01T00:00:00Z'],
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
  const SECRET = 'dangerouslyPlainSecret: x';
  const mistakes: [text: string | Buffer, expected: string][] = [
    [plain('expiresAt: 2026-05-01T00:00:00'), 'merchants[0].keys[0].expiresAt: must be a time'],
    [plain('revokedAt: 2026-13-01T00:00:00Z'), 'merchants[0].keys[0].revokedAt: must be a time'],
    [plain('revoked_at: 2026-05-01T00:00:00Z'), 'merchants[0].keys[0]: has an unknown member'],
    [
      plain('notBefore: 2026-05-01T00:00:00Z, expiresAt: 2026-05-01T00:00:00Z'),
      'must be later than notBefore',
    ],
    [plain('scopes: []'), 'merchants[0].keys[0].scopes: must name an operation'],
    [plain(`scopes: ['a"b']`), 'merchants[0].keys[0].scopes[0]: must be an operation name'],
    [withKeys('{ id: a }'), 'merchants[0].keys[0]: must have exactly one of'],
    [withKeys(`{ id: a, hash: "${HASH}", ${SECRET} }`), 'merchants[0].keys[0]: must have exactly one of'],
    [withKeys('{ id: a, hash: "sha256:00" }'), 'merchants[0].keys[0].hash: must be hmac-sha256:'],
    [withKeys('{ id: a, dangerouslyPlainSecret: a b }'), 'dangerouslyPlainSecret: must be 1 to 512'],
    ['merchants: [{ code: 1001, keys: [] }]', 'merchants[0].code: must be a string of 1 to 64'],
    [
      withKeys(`{ id: a, ${SECRET} }`, `{ id: a, ${SECRET}y }`),
      'merchants[0].keys[1].id: is the same as in [0]',
    ],
    [
      withKeys(`{ id: a, ${SECRET} }`, `{ id: b, ${SECRET} }`),
      'keys[1]: is the same secret key as merchants[0]',
    ],
    [
      `merchants: [{ code: A, keys: [{ id: a, hash: "${HASH}" }] }, ${plain('').slice('merchants: ['.length)}`,
      'merchants[1].keys[0]: is the same secret key as merchants[0].keys[0]',
    ],
    ['merchants: [{ code: M, keys: [] }, { code: M, keys: [] }]', 'merchants[1].code: is the same as in [0]'],
    ['[]', 'the file: must be a mapping'],
    ['merchants:\n  - code: a: b', 'line 2, column 11: is not valid YAML'],
    [plain('id: b'), 'is not valid YAML (duplicate key)'],
    ['format: 2\nmerchants: []', 'format: is a format that this version of oncegate does not'],
    ['merchants: []\n---\nmerchants: []', 'is not valid YAML (multiple docs)'],
    ['merchants: *a', 'the file: has too many aliases, or an alias without an anchor'],
    ['merchants: &a [*a]', 'merchants[0]: must be a mapping'],
    [Buffer.from('merchants: [] # \xff', 'latin1'), 'the file: is not UTF-8'],
  ];

  test('is named with its place', () => {
    eachRow(mistakes, ([text, expected]) => expect(mistakesOf(text, PEPPER)).toContain(expected));
  });

  test('a hash without a pepper', () => {
    const [one, other] = [`{ id: b, hash: "${HASH}" }`, `{ id: c, hash: "${HASH.replace('0', '1')}" }`];
    const text = withKeys('{ id: a, dangerouslyPlainSecret: x }', one, other);
    expect(mistakesOf(text)).toMatch(
      /^the file: has hashes, .* Set auth\.pepper .* pepper: "\$\{ONCEGATE_PEPPER\}"$/,
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

  const leaks = [
    withKeys(`{ id: a, hash: ${LEAK} }`),
    withKeys(`{ id: a, dangerouslyPlainSecret: "${LEAK} x" }`),
    withKeys(`{ id: a, dangerouslyPlainSecret: [${LEAK}] }`),
    withKeys(`{ id: a, ${LEAK} }`),
    plain(`expiresAt: ${LEAK}`),
    plain(`scopes: ["${LEAK} x"]`),
    withKeys(`{ id: "${LEAK} x", dangerouslyPlainSecret: x }`),
    withKeys(`{ id: a, dangerouslyPlainSecret: ${LEAK} }`, `{ id: b, dangerouslyPlainSecret: ${LEAK} }`),
    withKeys(`{ id: a, dangerouslyPlainSecret: *${LEAK} }`),
    withKeys(`{ id: a, dangerouslyPlainSecret: !${LEAK} x }`),
    `${withKeys(`{ id: a, dangerouslyPlainSecret: ${LEAK} }`)}]`,
    `merchants:\n- "${LEAK}`,
    `%${LEAK}\n---\nmerchants: 1`,
    `{ ${LEAK}: 1, ${LEAK}: 2 }`,
    LEAK,
  ];

  test('is reported without quoting a secret', () => {
    for (const text of leaks) {
      expect(mistakesOf(text, PEPPER)).not.toBe('no mistake');
      expect(mistakesOf(text, PEPPER), text).not.toContain(LEAK);
    }
  });
});

describe('a key file parsed aside', () => {
  const small = (expiresAt: string) => plain(`expiresAt: ${expiresAt}`);
  /** Large enough to be parsed in another thread. */
  const large = (expiresAt: string) => `${small(expiresAt)}\n# ${'x'.repeat(16 * 1024)}`;

  test.each([small, large])('has the same result (%#)', async (text) => {
    const bytes = Buffer.from(text('2026-05-01T00:00:00Z'));
    expect(await parseKeyFileAside(bytes)).toEqual(parseKeyFile(bytes));
  });

  test.each([small, large])('has the same mistakes (%#)', async (text) => {
    const aside = parseKeyFileAside(Buffer.from(text('never')));
    await expect(aside).rejects.toThrow(mistakesOf(small('never')));
  });
});

describe('a line for the key file', () => {
  test('contains only the hash, and the gateway accepts the secret key with it', () => {
    const line = keyLine('2026-04', hashOf(PEPPER, 'sk_new'), ['balance', '*']);
    expect(line).toMatch(
      /^- \{ id: "2026-04", hash: "hmac-sha256:[0-9a-f]{64}", scopes: \["balance", "\*"\] \}$/,
    );
    const index = load(`merchants:\n  - code: M\n    keys:\n      ${line}\n`, PEPPER);
    expect(index.find('sk_new')).toMatchObject({ keyId: '2026-04', scopes: ['balance', '*'] });
  });

  test.each([
    ['a", x: "', undefined, 'id: must be'],
    ['a', [], 'scopes: must name'],
  ])('is refused for %j, %j', (id, scopes, expected) => {
    expect(() => keyLine(id, hashOf(PEPPER, 'sk'), scopes)).toThrow(expected);
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
