import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { expectPlain, newFolder, run } from '../../support/command.ts';

describe('the help of a command', () => {
  it.concurrent.each([
    [[], ['serve', 'check', 'keys', 'records', 'sandbox', 'start', '--help']],
    [
      ['serve', '--help'],
      ['--config FILE', 'gateway.example.yaml'],
    ],
    [
      ['check', '-h'],
      ['--config FILE', 'Exit codes'],
    ],
    [
      ['keys', 'hash', '--help'],
      ['--id ID', '--scope OPERATION', 'ONCEGATE_PEPPER', 'standard input'],
    ],
    [
      ['records', '--help'],
      ['list', 'show', 'resolve', 'Exit codes'],
    ],
    [
      ['records', 'resolve', '--help'],
      ['--as completed', '--as released', '--reason TEXT', '--execution E', '--body FILE'],
    ],
    [
      ['start', '--help'],
      ['--config FILE', '--port N', '--admin-port N', '--sandbox-port N', '--data DIR'],
    ],
    [
      ['sandbox', '--help'],
      ['--port PORT', '--db FILE', 'sk_sandbox_alpha'],
    ],
  ])('is printed for %j', async (args, words) => {
    const ended = await run(args);
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    for (const word of words) expect(ended.stdout).toContain(word);
  });
});

it('oncegate --version prints the version of the package', async () => {
  const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8'));
  expect(await run(['--version'])).toMatchObject({ code: 0, stdout: `${version}\n`, stderr: '' });
});

describe('a command with wrong arguments', () => {
  it.concurrent.each([
    [['frobnicate'], 'there is no command "frobnicate"', 'oncegate serve --config FILE'],
    [['toString'], 'there is no command "toString"', 'oncegate serve --config FILE'],
    [['serve'], '--config is missing', 'oncegate serve --config FILE'],
    [['check', '--confg', 'a.yaml'], "'--confg'", 'oncegate check --config FILE'],
    [['serve', 'a.yaml'], "'a.yaml'", 'oncegate serve --config FILE'],
    [['keys', 'forget'], 'the keys command needs an action', 'oncegate keys hash'],
    [['keys', 'rotate'], '--merchant is missing', 'oncegate keys rotate'],
    [['keys', 'hash'], '--id is missing', 'oncegate keys hash'],
    [['records', 'settle'], 'the records command needs an action', 'oncegate records list'],
    [['records', 'list'], '--config is missing', 'oncegate records list --config FILE'],
    [['start', '--prot', '1'], "'--prot'", '--sandbox-port N'],
  ])('exits with 64 and prints its usage: %j', async (args, reason, usage) => {
    const ended = await run(args);
    expect(ended).toMatchObject({ code: 64, stdout: '' });
    expectPlain(ended);
    const [first = ''] = ended.stderr.split('\n');
    expect(first).toContain(reason);
    expect(ended.stderr).toContain(usage);
  });

  it.concurrent.each([
    ['--port', 'http'],
    ['--admin-port', '65536'],
    ['--sandbox-port', '-1'],
  ])('exits with 64 and creates no file: start %s %s', async (option, port) => {
    const cwd = newFolder();
    const ended = await run(['start', `${option}=${port}`], { cwd });
    expect(ended).toMatchObject({ code: 64, stdout: '' });
    expect(ended.stderr).toBe(`oncegate: "${port}" is not a port\n`);
    expect(readdirSync(cwd)).toEqual([]);
  });

  it.concurrent('exits with 64 for start with --config and --port', async () => {
    const ended = await run(['start', '--config', 'gateway.yaml', '--port', '8081']);
    expect(ended).toMatchObject({ code: 64, stdout: '' });
    expect(ended.stderr).toMatch(/--port/);
  });
});
