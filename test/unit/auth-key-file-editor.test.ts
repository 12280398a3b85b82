import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { editKeyFile } from '../../src/auth/key-file-editor.ts';

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
  folder = mkdtempSync(join(tmpdir(), 'oncegate-test-'));
  path = join(folder, 'keys.yaml');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const text = () => readFileSync(path, 'utf8');

const PEPPER = 'a-pepper-of-some-length';

describe('editing a key file', () => {
  it('refuses the same secret key under a second id', () => {
    writeFileSync(path, YAML);
    expect(() => editKeyFile(path, (editor) => editor.add('M-2', { id: 'b', hash: HASH }), PEPPER)).toThrow(
      /is the same secret key as merchants\[0\]\.keys\[0\]/,
    );
    expect(text()).toBe(YAML);
  });

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

  it('creates the file and the merchant, readable by its owner only', () => {
    editKeyFile(path, (editor) => editor.add('M-9', { id: '007', hash: HASH }), PEPPER);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    const { merchants } = editKeyFile(path, ({ file }) => file);
    expect(merchants).toMatchObject([{ code: 'M-9', keys: [{ id: '007', hash: HASH, scopes: ['*'] }] }]);
  });

  it('keeps JSON as JSON, and the mode of the file', () => {
    writeFileSync(path, JSON.stringify({ merchants: [{ code: 'M-1', keys: [{ id: 'a', hash: HASH }] }] }));
    chmodSync(path, 0o640);
    editKeyFile(path, (editor) => {
      editor.add('M-1', { id: '1e3', hash: OTHER_HASH });
      editor.add('M-2', { id: 'b', hash: `hmac-sha256:${'c'.repeat(64)}` });
      editor.setPepperCheck(HASH);
    });
    expect(JSON.parse(text())).toMatchObject({
      pepperCheck: HASH,
      merchants: [{ keys: [{ id: 'a' }, { id: '1e3' }] }, { code: 'M-2', keys: [{ id: 'b' }] }],
    });
    expect(statSync(path).mode & 0o777).toBe(0o640);
  });

  it.each([
    [
      'a second key with one id',
      YAML,
      () => ({ id: '2026-01', hash: OTHER_HASH }),
      /has a key with the id 2026-01/,
    ],
    ['an invalid id', YAML, () => ({ id: 'a b', hash: OTHER_HASH }), /id: must be/],
    ['a file with an unknown member', `x: &k []\n${YAML}`, () => ({ id: 'b', hash: HASH }), /unknown member/],
    ['a file with a mistake', 'merchants: 1\n', () => ({ id: 'b', hash: HASH }), /merchants: must be/],
  ])('refuses %s, and changes nothing', (_, before, key, reason) => {
    writeFileSync(path, before);
    expect(() => editKeyFile(path, (editor) => editor.add('M-1', key()), PEPPER)).toThrow(reason);
    expect(text()).toBe(before);
    expect(readdirSync(folder)).toEqual(['keys.yaml']);
  });

  it('refuses a list that is an alias, and a key that is not there', () => {
    const aliases = `merchants:\n  - { code: A, keys: &all [{ id: a, hash: "${HASH}" }] }\n  - { code: B, keys: *all }\n`;
    writeFileSync(path, aliases);
    expect(() => editKeyFile(path, (editor) => editor.add('B', { id: 'b', hash: OTHER_HASH }))).toThrow(
      /alias/,
    );
    expect(() =>
      editKeyFile(path, (editor) => editor.setTime('A', 'z', 'revokedAt', '2027-01-01T00:00:00Z')),
    ).toThrow('the merchant A has no key with the id z');
    expect(text()).toBe(aliases);
  });

  it('follows a symbolic link', () => {
    const target = join(folder, 'real.yaml');
    writeFileSync(target, YAML);
    symlinkSync(target, path);
    editKeyFile(path, (editor) => editor.add('M-1', { id: 'b', hash: OTHER_HASH }));
    expect(lstatSync(path).isSymbolicLink()).toBe(true);
    expect(readFileSync(target, 'utf8')).toContain('id: b');
  });

  it('refuses a change that would alter another key', () => {
    writeFileSync(
      path,
      `merchants:\n  - { code: A, keys: [&a { id: a, hash: "${HASH}" }] }\n  - { code: B, keys: [*a] }\n`,
    );
    expect(() =>
      editKeyFile(path, (editor) => editor.setTime('A', 'a', 'revokedAt', '2027-01-01T00:00:00Z')),
    ).toThrow('would alter another key');
  });

  it('is refused while another command edits it', () => {
    writeFileSync(path, YAML);
    editKeyFile(path, () => {
      expect(() => editKeyFile(path, () => {})).toThrow(/another command changes/);
    });
    expect(existsSync(`${path}.lock`)).toBe(false);
  });
});
