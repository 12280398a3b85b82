import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { Names } from '../../../src/store/redis/commands.ts';
import { bring } from '../../contract/states.ts';
import { rawBackend } from '../../support/backend.ts';
import { type Ended, expectPlain, newFolder, run } from '../../support/command.ts';
import { configFile, type MoreConfig, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { startRedis } from '../../support/redis-server.ts';
import { read } from '../../support/repository.ts';
import { storeForTest } from '../../support/stores.ts';

const SECRET = 'hunter2-hunter2-hunter2';

function newFile(text: string): string {
  const file = join(newFolder(), 'gateway.yaml');
  writeFileSync(file, text);
  return file;
}

const configWith = (more: MoreConfig = {}): string =>
  configFile(testConfig(newFolder(), 'http://127.0.0.1:9', more));

const serve = (more: MoreConfig = {}) => run(['serve', '--config', configWith(more)]);

const startOn = (...args: string[]) =>
  run(['start', '--port=0', '--admin-port=0', '--sandbox-port=0', `--data=${newFolder()}`, ...args]);

function expectOneLine(ended: Ended, line: RegExp | string): void {
  expect(ended.stderr).toMatch(line);
  expect(ended.stderr.split('\n')).toHaveLength(2);
  expect(ended.stderr).not.toContain(SECRET);
  expectPlain(ended);
}

describe('the command line', () => {
  it('prints the help of a command, and the version of the package', async () => {
    const { version } = JSON.parse(read('package.json'));
    expect(await run(['--version'])).toEqual({ code: 0, stdout: `${version}\n`, stderr: '' });
    const helps: Record<string, string[]> = {
      '': ['serve', 'check', 'keys', 'records', 'sandbox', 'start', '--help'],
      'check -h': ['--config FILE', 'Exit codes'],
      'keys hash --help': ['--id ID', '--scope OPERATION', 'ONCEGATE_PEPPER', 'standard input'],
      'records resolve --help': ['--as completed', '--reason TEXT', '--execution E', '--body FILE'],
    };
    for (const [command, words] of Object.entries(helps)) {
      const ended = await run(command.split(' ').filter(Boolean));
      expect({ command, ...ended }).toMatchObject({ command, code: 0, stderr: '' });
      for (const word of words) expect(ended.stdout).toContain(word);
    }
  });

  it('exits with 64 for wrong arguments, says which, and prints the usage of the command', async () => {
    const cases: [args: string[], reason: string, usage: string][] = [
      [['frobnicate'], 'there is no command "frobnicate"', 'oncegate serve --config FILE'],
      [['toString'], 'there is no command "toString"', 'oncegate serve --config FILE'],
      [['serve'], '--config is missing', 'oncegate serve --config FILE'],
      [['check', '--confg', 'a.yaml'], "'--confg'", 'oncegate check --config FILE'],
      [['serve', 'a.yaml'], "'a.yaml'", 'oncegate serve --config FILE'],
      [
        ['config', 'show'],
        'the config command needs an action: print',
        'oncegate config print --config FILE',
      ],
      [['keys', 'forget'], 'the keys command needs an action', 'oncegate keys hash'],
      [['keys', 'rotate'], '--merchant is missing', 'oncegate keys rotate'],
      [['keys', 'hash'], '--id is missing', 'oncegate keys hash'],
      [['records', 'settle'], 'the records command needs an action', 'oncegate records list'],
      [['records', 'list'], '--config is missing', 'oncegate records list --config FILE'],
      [['store', 'reset'], 'the store command needs an action', 'oncegate store accept'],
      [['start', '--prot', '1'], "'--prot'", '--sandbox-port N'],
      [['start', '--port', 'http'], '"http" is not a port', ''],
      [['start', '--admin-port', '65536'], '"65536" is not a port', ''],
      [['start', '--sandbox-port=-1'], '"-1" is not a port', ''],
      [['start', '--config', 'a.yaml', '--port', '1'], '--port cannot be used together', '--sandbox-port N'],
    ];
    for (const [args, reason, usage] of cases) {
      const ended = await run(args);
      expect({ args, ...ended }).toMatchObject({ args, code: 64, stdout: '' });
      expectPlain(ended);
      expect(ended.stderr.split('\n')[0]).toContain(reason);
      expect(ended.stderr).toContain(usage);
    }
  });
});

describe('a command with a broken configuration', () => {
  const UPSTREAM = 'upstream: { url: "http://127.0.0.1:9" }\n';
  const cases: [text: string, ...lines: RegExp[]][] = [
    [
      `${UPSTREAM}listen: { port: high }\nlimts: 2\n`,
      /^oncegate: listen\.port: "high" is not allowed: ./,
      /^oncegate: limts: is not an option; is it limits\? \(line 3, column 1\)$/,
    ],
    [`${UPSTREAM}admin: { token: *${SECRET} }`, /^oncegate: is not valid YAML: ./],
  ];

  it.each(['serve', 'check', 'start'])('exits with 78 and a line for each mistake: %s', async (command) => {
    for (const [text, ...lines] of cases) {
      const file = newFile(text);
      const ended = await run([command, '--config', file]);
      expect({ text, ...ended }).toMatchObject({ text, code: 78, stdout: '' });
      expectPlain(ended);
      expect(ended.stderr).not.toContain(SECRET);
      const said = ended.stderr.replaceAll(`${file}: `, '').trimEnd().split('\n');
      expect(said).toHaveLength(lines.length);
      for (const line of lines) expect(said).toContainEqual(expect.stringMatching(line));
    }
    expect(await run([command, '--config', '/nowhere/gateway.yaml'])).toEqual({
      ...{ code: 78, stdout: '', stderr: 'oncegate: /nowhere/gateway.yaml: cannot be read (ENOENT)\n' },
    });
  });
});

it('config print shows the configuration in force, which a gateway reads again, and no secret', async () => {
  const file = newFile(
    'upstream: { url: "http://127.0.0.1:9000", responseTimeoutMs: 5s }\nadmin: { token: "$' +
      '{TOKEN}" }\nstore: { kind: sqlite, encryption: { keys: [{ id: a, secret: "$' +
      '{STORE_KEY}" }] } }\n',
  );
  const env = { TOKEN: 'a-token-of-some-length', STORE_KEY: 'ab'.repeat(32) };
  const printed = await run(['config', 'print', '--config', file], { env });
  expect(printed).toMatchObject({ code: 0, stderr: '' });
  for (const secret of Object.values(env)) expect(printed.stdout).not.toContain(secret);
  expect(parse(printed.stdout)).toMatchObject({
    upstream: { url: 'http://127.0.0.1:9000', responseTimeoutMs: 5000 },
    admin: { token: '[secret]', port: 8081 },
    store: { kind: 'sqlite', path: './data', encryption: { keys: [{ id: 'a', secret: '[secret]' }] } },
  });
  const again = newFile(
    printed.stdout
      .replace('token: "[secret]"', `token: ${env.TOKEN}`)
      .replace('secret: "[secret]"', `secret: ${env.STORE_KEY}`),
  );
  expect((await run(['config', 'print', '--config', again])).stdout).toBe(printed.stdout);
});

describe('a start that cannot succeed says why in one line', () => {
  it('if a port is in use', async () => {
    const port = Number(new URL(await rawBackend(() => {})).port);
    const taken = { host: '127.0.0.1', port };
    const free = { host: '127.0.0.1', port: await freePort() };
    const cases: [options: string, at: typeof taken, more: MoreConfig][] = [
      ['listen.port', taken, { listen: taken }],
      ['admin.port', taken, { admin: taken }],
      ['listen.port and admin.port', free, { listen: free, admin: free }],
    ];
    for (const [options, at, more] of cases) {
      const ended = await serve(more);
      expect(ended.code).toBe(1);
      const line = `oncegate: port ${at.port} on 127.0.0.1 is in use by another process (${options})\n`;
      expectOneLine(ended, line);
    }
    for (const option of ['--port', '--admin-port', '--sandbox-port']) {
      const ended = await startOn(`${option}=${port}`);
      expect([ended.code, ended.stdout]).toEqual([1, '']);
      expectOneLine(ended, new RegExp(`\\b${port}\\b.* in use by another process \\(${option}\\)$`, 'm'));
    }
  });

  it('if the data folder cannot be used', async () => {
    const file = configWith();
    const serveOn = (path: string) => serve({ store: { kind: 'sqlite', path } });
    const ends: [code: number, named: string, ended: Ended][] = [
      [1, 'gateway.yaml', await startOn(`--data=${join(file, 'data')}`)],
      [1, '/proc/oncegate-data', await startOn('--data=/proc/oncegate-data')],
      [69, 'gateway.yaml', await serveOn(join(file, 'data'))],
      [69, 'gateway.yaml', await serveOn(file)],
    ];
    for (const [code, named, ended] of ends) {
      expect(ended.code).toBe(code);
      expectOneLine(ended, named);
    }
    expect(existsSync('/proc/oncegate-data')).toBe(false);
  });

  it('if Redis cannot be reached, or has another password', async () => {
    const serveOn = (url: string, connectTimeoutMs: number) =>
      serve({
        store: { kind: 'redis', url: url.replace('redis://', `redis://:${SECRET}@`), connectTimeoutMs },
      });
    const closed = await startRedis({ args: ['--requirepass', 'another'] });
    const away = await serveOn(`redis://127.0.0.1:${await freePort()}`, 500);
    expectOneLine(away, /^oncegate: redis cannot be reached: .*ECONNREFUSED/);
    const refused = await serveOn(closed.url, 2000);
    expectOneLine(refused, /^oncegate: redis .*WRONGPASS/);
    expect([away.code, refused.code]).toEqual([69, 69]);
  });
});

it('store repair-index finds keys in doubt again whose index is gone, and says that SQLite has none to repair', async () => {
  const redis = await startRedis();
  const folder = newFolder();
  const { store: atHome, ...config } = testConfig(folder, 'http://127.0.0.1:1');
  const repair = (store: unknown) =>
    run(['store', 'repair-index', '--config', configFile({ ...config, store })]);
  const store = await storeForTest({ kind: 'redis', url: redis.url, prefix: 'oncegate' });
  const { recordId } = await bring(store, 'in_doubt');
  const inDoubt = async () => (await store.list({ inDoubt: true, limit: 10 })).records.length;
  const [index = ''] = (await redis.admin.keys('*:open')).filter((name) =>
    new Names('oncegate').recordOf(recordId).startsWith(name.replace(/open$/, '')),
  );
  await redis.admin.del(index);
  expect(await inDoubt()).toBe(0);
  expect(await repair({ kind: 'redis', url: redis.url })).toMatchObject({ code: 0, stderr: '' });
  expect(await inDoubt()).toBe(1);
  const none = { code: 1, stderr: expect.stringContaining('there is nothing to repair') };
  expect(await repair(atHome)).toMatchObject(none);
});
