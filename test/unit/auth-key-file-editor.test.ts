import {
  chmodSync,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { editKeyFile } from '../../src/keys/key-file-editor.ts';
import { pepperCheckOf } from '../../src/keys/key-index.ts';
import { temporaryFolder } from '../support/config.ts';

const HASH = `hmac-sha256:${'a'.repeat(64)}`;
const OTHER_HASH = `hmac-sha256:${'b'.repeat(64)}`;

const YAML = `# who may call
merchants:
  - code: M-1 # the first
    name: One
    keys:
      - id: "2026-01" # old
        hash: "${HASH}"
`;

let folder: string;
let path: string;
beforeEach(() => {
  folder = temporaryFolder();
  path = join(folder, 'keys.yaml');
});

const text = () => readFileSync(path, 'utf8');

const PEPPER = 'a-pepper-of-some-length';

describe('editing a key file', () => {
  it('never makes a key valid for longer', () => {
    writeFileSync(path, YAML);
    const revoke = (time: string) =>
      editKeyFile(path, (editor) => editor.setTime('M-1', '2026-01', 'revokedAt', time));
    revoke('2026-11-01T00:00:00Z');
    expect(() => revoke('2026-12-01T00:00:00Z')).toThrow('its revokedAt is 2026-11-01T00:00:00.000Z already');
    revoke('2026-10-01T00:00:00Z');
    expect(text()).toContain('revokedAt: 2026-10-01T00:00:00Z');
  });

  it('does not create a file without a key', () => {
    expect(() => editKeyFile(path, () => {})).toThrow(`${path} does not exist`);
    expect(readdirSync(folder)).toEqual([]);
  });

  it('keeps comments, order and format', () => {
    writeFileSync(path, YAML);
    editKeyFile(path, (editor) => {
      editor.add('M-1', {
        id: '2026-02',
        hash: OTHER_HASH,
        scopes: ['balance'],
        expiresAt: '2027-01-01T00:00:00Z',
      });
      editor.setTime('M-1', '2026-01', 'revokedAt', '2026-12-01T00:00:00Z');
    });
    expect(text()).toBe(`# who may call
merchants:
  - code: M-1 # the first
    name: One
    keys:
      - id: "2026-01" # old
        hash: "${HASH}"
        revokedAt: 2026-12-01T00:00:00Z
      - { id: 2026-02, hash: ${OTHER_HASH}, scopes: [ balance ], expiresAt: 2027-01-01T00:00:00Z }
`);
  });

  it('removes a key, and its merchant with the last one', () => {
    writeFileSync(path, YAML);
    const remove = (id: string) => () => editKeyFile(path, (editor) => editor.remove('M-1', id));
    editKeyFile(path, (editor) => editor.add('M-1', { id: 'b', hash: OTHER_HASH }));
    remove('b')();
    expect(text()).toBe(YAML);
    expect(remove('b')).toThrow('the merchant M-1 has no key with the id b');
    remove('2026-01')();
    expect(text()).toBe('# who may call\nmerchants: []\n');
    writeFileSync(path, `merchants:\n  - { code: M-1, keys: [&a { id: a, hash: "${HASH}" }] }\n  - *a\n`);
    expect(remove('a')).toThrow();
  });

  it('creates the file and the merchant, readable by its owner only', () => {
    editKeyFile(path, (editor) => editor.add('M-9', { id: '007', hash: HASH }), PEPPER);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    const { merchants } = editKeyFile(path, ({ file }) => file);
    expect(merchants).toMatchObject([{ code: 'M-9', keys: [{ id: '007', hash: HASH, scopes: ['*'] }] }]);
  });

  it('notes the pepper of new hashes, unless there are hashes without a note of theirs', () => {
    editKeyFile(path, (editor) => editor.add('M-1', { id: 'a', hash: HASH }), PEPPER);
    expect(text()).toContain(`pepperCheck: ${pepperCheckOf(PEPPER)}\n`);
    const another = 'another-pepper-of-some-length';
    expect(() => editKeyFile(path, () => {}, another)).toThrow(
      `${path}: pepperCheck: the pepper is not the one that made these hashes`,
    );
    writeFileSync(path, YAML);
    editKeyFile(path, (editor) => editor.add('M-1', { id: 'b', hash: OTHER_HASH }), another);
    expect(text()).not.toContain('pepperCheck');
  });

  it('keeps JSON as JSON, and the mode of the file', () => {
    writeFileSync(path, JSON.stringify({ merchants: [{ code: 'M-1', keys: [{ id: 'a', hash: HASH }] }] }));
    chmodSync(path, 0o640);
    editKeyFile(path, (editor) => {
      editor.add('M-1', { id: '1e3', hash: OTHER_HASH });
      editor.add('M-2', { id: 'b', hash: `hmac-sha256:${'c'.repeat(64)}` });
    });
    expect(JSON.parse(text())).toMatchObject({
      merchants: [{ keys: [{ id: 'a' }, { id: '1e3' }] }, { code: 'M-2', keys: [{ id: 'b' }] }],
    });
    expect(statSync(path).mode & 0o777).toBe(0o640);
  });

  it('refuses a mistake, in the change or before it, and changes nothing', () => {
    const cases: [before: string, key: { id: string; hash: string }, reason: RegExp][] = [
      [YAML, { id: '2026-01', hash: OTHER_HASH }, /has a key with the id 2026-01/],
      [YAML, { id: 'a b', hash: OTHER_HASH }, /id: must be/],
      [YAML, { id: 'b', hash: HASH }, /is the same secret key as merchants\[0\]\.keys\[0\]/],
      [`x: &k []\n${YAML}`, { id: 'b', hash: HASH }, /unknown member/],
      ['merchants: 1\n', { id: 'b', hash: HASH }, /merchants: must be/],
    ];
    for (const [before, key, reason] of cases) {
      writeFileSync(path, before);
      expect(() => editKeyFile(path, (editor) => editor.add('M-1', key), PEPPER)).toThrow(reason);
      expect(text()).toBe(before);
      expect(readdirSync(folder)).toEqual(['keys.yaml']);
    }
  });

  it('refuses to change an alias or what it names, and a key that is not there', () => {
    const key = `{ id: a, hash: "${HASH}" }`;
    const merchants = (a: string, b: string) =>
      `merchants:\n  - { code: A, keys: ${a} }\n  - { code: B, keys: ${b} }\n`;
    const revoke = (id: string) => () =>
      editKeyFile(path, (editor) => editor.setTime('A', id, 'revokedAt', '2027-01-01T00:00:00Z'));
    const aliases = merchants(`&all [${key}]`, '*all');
    writeFileSync(path, aliases);
    const add = () => editKeyFile(path, (editor) => editor.add('B', { id: 'b', hash: OTHER_HASH }));
    expect(add).toThrow(/alias/);
    expect(revoke('z')).toThrow('the merchant A has no key with the id z');
    expect(text()).toBe(aliases);
    writeFileSync(path, merchants(`[&a ${key}]`, '[*a]'));
    expect(revoke('a')).toThrow('would alter another key');
  });

  it('follows a symbolic link', () => {
    const target = join(folder, 'real.yaml');
    writeFileSync(target, YAML);
    symlinkSync(target, path);
    editKeyFile(path, (editor) => editor.add('M-1', { id: 'b', hash: OTHER_HASH }));
    expect(lstatSync(path).isSymbolicLink()).toBe(true);
    expect(readFileSync(target, 'utf8')).toContain('id: b');
  });

  it('is refused while another command edits it', () => {
    writeFileSync(path, YAML);
    editKeyFile(path, () => {
      expect(() => editKeyFile(path, () => {})).toThrow(/another command changes/);
    });
    expect(existsSync(`${path}.lock`)).toBe(false);
  });
});
