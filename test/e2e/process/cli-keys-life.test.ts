import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type CommandOptions, expectPlain, newFolder } from '../../support/command.ts';
import { configFor, openSandbox, startGateway } from './gateways.ts';
import { keys, newKey } from './key-commands.ts';

describe('the life of a secret key', () => {
  it('import, show and verify', async () => {
    const file = ['--file', join(newFolder(), 'keys.yaml')];
    const input = 'sk_sandbox_imported';
    const add = [
      'import',
      ...file,
      '--merchant',
      'M-1',
      '--id',
      'old',
      '--scope',
      'balance',
      '--expires',
      '30d',
    ];
    expect(await keys(add, { input })).toMatchObject({ code: 0, stdout: '' });
    const shown = await keys(['show', ...file, '--merchant', 'M-1', '--id', 'old']);
    expect(JSON.parse(shown.stdout)).toMatchObject({
      merchant: 'M-1',
      id: 'old',
      state: 'in force',
      scopes: ['balance'],
    });
    expect(shown.stdout).not.toMatch(/hmac-sha256|sandbox/);
    expect(await keys(['verify', ...file], { input })).toMatchObject({
      code: 0,
      stdout: 'old of the merchant M-1, in force\n',
    });
    expect(await keys(['verify', ...file], { input: 'sk_sandbox_another' })).toMatchObject({
      code: 1,
      stdout: '',
    });
  });

  it('a gateway with another pepper than the file refuses to start', async () => {
    const path = join(newFolder(), 'keys.yaml');
    await newKey(['issue', '--file', path, '--merchant', 'M-ALPHA']);
    const config = configFor(await openSandbox(), {
      auth: { pepper: 'another-pepper-of-some-length', keys: { source: 'file', path } },
    });
    await expect(startGateway(config)).rejects.toThrow(
      'auth.pepper is not the pepper that made these hashes',
    );
  });

  it.concurrent.each([
    ['no merchant', 64, ['issue'], {}, /--merchant is missing/],
    ['an unknown mode', 64, ['issue', '--merchant', 'M', '--mode', 'prod'], {}, /live or test/],
    ['a wrong time', 64, ['issue', '--merchant', 'M', '--expires', 'tomorrow'], {}, /--expires takes a time/],
    ['a wrong overlap', 64, ['rotate', '--merchant', 'M', '--overlap', '1 day'], {}, /--overlap takes/],
    ['nothing to rotate', 1, ['rotate', '--merchant', 'M'], {}, /no such key in force/],
    ['nothing to revoke', 1, ['revoke', '--merchant', 'M', '--id', 'a'], {}, /keys.yaml does not exist/],
    [
      'a duration that is too long',
      64,
      ['issue', '--merchant', 'M', '--expires', '999999999d'],
      {},
      /--expires takes/,
    ],
    [
      'a day that there is not',
      64,
      ['issue', '--merchant', 'M', '--expires', '2027-02-30T00:00:00Z'],
      {},
      /--expires/,
    ],
    [
      'a mistyped secret',
      1,
      ['import', '--merchant', 'M', '--id', 'a'],
      { input: 'og_live_hunter2_hunter2_hunter2' },
      /its checksum is wrong/,
    ],
    ['no pepper', 78, ['issue', '--merchant', 'M'], { env: { ONCEGATE_PEPPER: '' } }, /ONCEGATE_PEPPER/],
    ['an invalid id', 1, ['issue', '--merchant', 'M', '--id', 'a b'], {}, /id: must be/],
    ['a short secret', 1, ['import', '--merchant', 'M', '--id', 'a'], { input: 'hunter2' }, /can be guessed/],
    ['no file', 78, ['list'], {}, /cannot be read \(ENOENT\)/],
  ] as [string, number, string[], CommandOptions, RegExp][])(
    'is refused without a file and without a secret: %s',
    async (_, code, args, options, reason) => {
      const path = join(newFolder(), 'keys.yaml');
      const ended = await keys([...args, '--file', path], options);
      expect(ended).toMatchObject({ code, stdout: '' });
      expectPlain(ended);
      expect(ended.stderr).toMatch(reason);
      expect(ended.stderr).not.toMatch(/hunter2|a-pepper/);
      expect(() => readFileSync(path)).toThrow('ENOENT');
    },
  );

  it('a file under another pepper is not changed', async () => {
    const path = join(newFolder(), 'keys.yaml');
    await newKey(['issue', '--file', path, '--merchant', 'M']);
    const before = readFileSync(path, 'utf8');
    const env = { ONCEGATE_PEPPER: 'another-pepper-of-some-length' };
    const ended = await keys(['issue', '--file', path, '--merchant', 'M'], { env });
    expect(ended).toMatchObject({ code: 78, stdout: '' });
    expect(ended.stderr).toContain('pepperCheck differs');
    expect(readFileSync(path, 'utf8')).toBe(before);
    writeFileSync(`${path}.lock`, '');
    expect((await keys(['revoke', '--file', path, '--merchant', 'M', '--id', 'x'])).stderr).toContain(
      'another command',
    );
  });
});
