import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { type CommandOptions, expectPlain, newFolder, run } from '../../support/command.ts';
import { configFile, testConfig } from '../../support/config.ts';
import { keys, newKey } from './key-commands.ts';

const newPath = () => join(newFolder(), 'keys.yaml');

it('keys import, show and verify', async () => {
  const file = ['--file', newPath()];
  const one = [...file, '--merchant', 'M-1', '--id', 'old'];
  const input = 'sk_sandbox_imported';
  const imported = await keys(['import', ...one, '--scope', 'balance', '--expires', '30d'], { input });
  expect(imported).toMatchObject({ code: 0, stdout: '' });
  const shown = await keys(['show', ...one]);
  expect(JSON.parse(shown.stdout)).toMatchObject({
    ...{ merchant: 'M-1', id: 'old', state: 'in force', scopes: ['balance'] },
  });
  expect(shown.stdout).not.toMatch(/hmac-sha256|sandbox/);
  const verify = (secret: string) => keys(['verify', ...file], { input: secret });
  expect(await verify(input)).toMatchObject({ code: 0, stdout: 'old of the merchant M-1, in force\n' });
  expect(await verify('sk_sandbox_another')).toMatchObject({ code: 1, stdout: '' });
});

it('keys hash prints a line with which the key is accepted', async () => {
  const printed = await Promise.all([
    keys(['hash', '--id', '2026-11'], { input: 'sk_sandbox_bravo' }),
    keys(['hash', '--id', 'reading', '--scope', 'balance'], { input: 'sk_sandbox_alpha\n' }),
  ]);
  for (const ended of printed) {
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^- \{ id: ".+", hash: "hmac-sha256:[0-9a-f]{64}".* \}\n$/);
    expect(ended.stdout).not.toMatch(/sk_sandbox|a-pepper/);
  }
  const path = newPath();
  writeFileSync(
    path,
    `merchants:\n- code: M-1\n  keys:\n${printed.map(({ stdout }) => `  ${stdout}`).join('')}`,
  );
  const verify = (input: string) => keys(['verify', '--file', path], { input });
  expect((await verify('sk_sandbox_bravo')).stdout).toBe('2026-11 of the merchant M-1, in force\n');
  expect((await verify('sk_sandbox_alpha')).stdout).toBe('reading of the merchant M-1, in force\n');
  const shown = await keys(['show', '--file', path, '--merchant', 'M-1', '--id', 'reading']);
  expect(JSON.parse(shown.stdout)).toMatchObject({ scopes: ['balance'] });
});

it('keys issue and import refuse a scope that no operation has, if they know the operations', async () => {
  const folder = newFolder();
  const file = configFile(testConfig(folder, 'http://127.0.0.1:9'), folder);
  const before = readFileSync(join(folder, 'keys.yaml'), 'utf8');
  const one = ['--config', file, '--merchant', 'M-1', '--id', 'a', '--scope', 'balance'];
  for (const action of ['issue', 'import']) {
    const ended = await keys([action, ...one, '--scope', 'withdrw'], { input: 'sk_sandbox_of_another' });
    expect(ended).toMatchObject({ code: 1, stdout: '' });
    expect(ended.stderr).toBe(
      'oncegate: no operation has the scope "withdrw": there are balance, withdraw, checkout, *, undeclared, other\n',
    );
  }
  expect(readFileSync(join(folder, 'keys.yaml'), 'utf8')).toBe(before);
  expect((await keys(['issue', ...one, '--scope', 'other'])).code).toBe(0);
  const unknown = await keys(['issue', '--file', newPath(), '--merchant', 'M', '--scope', 'withdrw']);
  expect([unknown.code, unknown.stderr]).toEqual([
    0,
    expect.stringContaining('the scopes were not compared with any operations: --config FILE does so\n'),
  ]);
});

it('keys remove takes out a key that is not in force', async () => {
  const path = newPath();
  const one = ['--file', path, '--merchant', 'M', '--id', 'a'];
  await newKey(['issue', ...one]);
  const remove = () => keys(['remove', ...one]);
  expect(await remove()).toEqual({
    ...{
      code: 1,
      stdout: '',
      stderr: 'oncegate: the key a of the merchant M is in force: revoke it first\n',
    },
  });
  await keys(['revoke', ...one]);
  expect(await remove()).toMatchObject({ code: 0, stdout: '' });
  expect((await keys(['list', '--file', path, '--json'])).stdout).toBe('[]\n');
  expect((await remove()).stderr).toBe('oncegate: the merchant M has no key with the id a\n');
});

it('keys refuses what it cannot do, writes no file, and prints no secret', async () => {
  const NO_PEPPER = { env: { ONCEGATE_PEPPER: '' } };
  const issue = ['issue', '--merchant', 'M'];
  const add = ['import', '--merchant', 'M', '--id', 'a'];
  const hash = ['hash', '--id', 'a'];
  const cases: [args: string[], code: number, reason: RegExp, options?: CommandOptions][] = [
    [['issue'], 64, /--merchant is missing/],
    [[...issue, '--mode', 'prod'], 64, /live or test/],
    [[...issue, '--expires', 'tomorrow'], 64, /--expires takes a time/],
    [[...issue, '--expires', '999999999d'], 64, /--expires takes/],
    [[...issue, '--expires', '2027-02-30T00:00:00Z'], 64, /--expires/],
    [[...issue, '--id', 'a b'], 1, /id: must be/],
    [[...issue, '--config', 'gateway.yaml'], 64, /name one of --config and --file/],
    [issue, 78, /ONCEGATE_PEPPER/, NO_PEPPER],
    [['rotate', '--merchant', 'M', '--overlap', '1 day'], 64, /--overlap takes/],
    [['rotate', '--merchant', 'M'], 1, /no such key in force/],
    [['revoke', '--merchant', 'M', '--id', 'a'], 1, /keys.yaml does not exist/],
    [add, 1, /its checksum is wrong/, { input: 'og_live_hunter2_hunter2_hunter2' }],
    [add, 1, /can be guessed/, { input: 'hunter2' }],
    [['list'], 78, /cannot be read \(ENOENT\)/],
    [hash, 78, /ONCEGATE_PEPPER/, NO_PEPPER],
    [hash, 78, /16 characters/, { env: { ONCEGATE_PEPPER: 'hunter2' } }],
    [hash, 64, /no secret key/, { input: '\n' }],
    [hash, 64, /too long/, { input: 'hunter2'.repeat(600) }],
    [hash, 1, /bearer token/, { input: 'hunter2 hunter2' }],
    [hash, 1, /bearer token/, { input: 'hunter2\nhunter2\n' }],
    [['hash', '--id', 'a b'], 1, /id: /],
    [[...hash, '--scope', ''], 1, /scopes/],
  ];
  for (const [args, code, reason, options] of cases) {
    const path = newPath();
    const file = args[0] === 'hash' ? [] : ['--file', path];
    const ended = await keys([...args, ...file], { input: 'sk_sandbox_bravo', ...options });
    expect({ args, ...ended }).toMatchObject({ args, code, stdout: '' });
    expectPlain(ended);
    expect(ended.stderr).toMatch(reason);
    expect(ended.stderr).not.toMatch(/hunter2|sk_sandbox|a-pepper/);
    expect(existsSync(path)).toBe(false);
  }
});

it('a file under another pepper is not changed, and no gateway starts with it', async () => {
  const path = newPath();
  await newKey(['issue', '--file', path, '--merchant', 'M']);
  const before = readFileSync(path, 'utf8');
  const pepper = 'another-pepper-of-some-length';
  const issue = ['issue', '--file', path, '--merchant', 'M'];
  const refused = await keys(issue, { env: { ONCEGATE_PEPPER: pepper } });
  expect(refused).toMatchObject({ code: 78, stdout: '' });
  const auth = { pepper, keys: { source: 'file', path } } as const;
  const config = configFile(testConfig(newFolder(), 'http://127.0.0.1:9', { auth }));
  const serve = await run(['serve', '--config', config]);
  for (const { stderr } of [refused, serve])
    expect(stderr).toContain('the pepper is not the one that made these hashes');
  expect(serve.code).toBe(1);
  expect(readFileSync(path, 'utf8')).toBe(before);
  writeFileSync(`${path}.lock`, '');
  const locked = await keys(['revoke', '--file', path, '--merchant', 'M', '--id', 'x']);
  expect(locked.stderr).toContain('another command');
});
