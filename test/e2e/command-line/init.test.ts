import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { upstreamOptions } from '../../../src/backend/upstream-options.ts';
import { startGateway } from '../../../src/cli/serve.ts';
import { loadConfig, parseConfig } from '../../../src/config/load.ts';
import { createLogger } from '../../../src/telemetry/logger.ts';
import { httpBackend } from '../../support/backend.ts';
import { isReplay, withdraw } from '../../support/client.ts';
import { expectPlain, newFolder, run } from '../../support/command.ts';
import { startPostgres } from '../../support/postgres-server.ts';
import { read } from '../../support/repository.ts';

const FILES = ['gateway.yaml', 'keys.yaml', 'secrets.env'];

const init = (folder: string, args: string[], input = '', isTerminal = false) =>
  run(['init', '--folder', folder, ...args], { input, isTerminal });

/** The environment that the file of secrets makes. */
const secretsIn = (folder: string): Record<string, string> =>
  Object.fromEntries(
    readFileSync(join(folder, 'secrets.env'), 'utf8')
      .trimEnd()
      .split('\n')
      .map((line) => line.replaceAll("'", '').split(/=(.*)/s).slice(0, 2)),
  );

it('init writes a configuration and a first secret key, which pass check and serve a payout', async () => {
  const got: unknown[] = [];
  const backend = await httpBackend(({ method, headers }, res) => {
    got.push([method, headers.authorization, headers['x-merchant-code']]);
    res.writeHead(method === 'GET' ? 200 : 201, { 'Content-Type': 'application/json' }).end('{}');
  });
  const folder = join(newFolder(), 'new');
  const ended = await init(folder, ['--backend', backend, '--merchant', 'M-7']);
  const secret = ended.stdout.trimEnd();
  expect(secret).toMatch(/^og_live_\w{32}_\w{6}$/);
  expect(readdirSync(folder)).toEqual(FILES);
  for (const name of ['keys.yaml', 'secrets.env'])
    expect(statSync(join(folder, name)).mode & 0o777).toBe(0o600);
  const [, ...steps] = [...ended.stderr.matchAll(/^ {2}(.+)$/gm)].map(([, step = '']) => step.split(' '));
  expect(steps.map(([program, action]) => `${program} ${action}`)).toEqual([
    'oncegate check',
    'oncegate serve',
  ]);

  const secrets = secretsIn(folder);
  const env = secrets;
  const [check = []] = steps;
  expect(check.slice(-2)).toEqual(['--secret-key-file', join(folder, 'secret-key')]);
  writeFileSync(join(folder, 'secret-key'), ended.stdout);
  const checked = await run(check.slice(1), { env });
  expect(checked).toMatchObject({ code: 0, stderr: '' });
  expect(checked.stdout).toContain('\nok   balance: GET /v2/get_balance for the merchant M-7: status 200\n');

  const config = loadConfig(join(folder, 'gateway.yaml'), env);
  const anyPort = { listen: { ...config.listen, port: 0 }, admin: { ...config.admin, port: 0 } };
  const served = await startGateway({ ...config, ...anyPort }, { env, logger: createLogger('silent') });
  onTestFinished(() => served.shutdown());
  const pay = () => withdraw(`http://127.0.0.1:${served.port}`, { secret, key: 'order-1' });
  expect((await pay()).status).toBe(201);
  expect(isReplay(await pay())).toBe(true);
  expect(got).toEqual([
    ['GET', undefined, 'M-7'],
    ['POST', undefined, 'M-7'],
  ]);

  const again = await init(folder, ['--backend', backend, '--merchant', 'M-8']);
  expect(again).toMatchObject({ code: 1, stdout: '' });
  expect(again.stderr).toContain('init overwrites nothing');
  expect(secretsIn(folder)).toEqual(secrets);
});

it('init asks at most four questions at a terminal, and takes what the options say', async () => {
  const folder = newFolder();
  const asked = await init(folder, [], 'http://payments:9000\n\nM-7\nreplace\n', true);
  expect(asked.code).toBe(0);
  const [questions = ''] = asked.stderr.split(`${folder}/keys.yaml: `);
  expect(questions.match(/: (?=[A-Z]|$)/g)).toHaveLength(4);
  expect(asked.stderr).toContain(' Write BACKEND_AUTHORIZATION into ');
  const file = join(folder, 'gateway.yaml');
  // An empty line of the secrets is a mistake, and not an empty credential.
  expect(() => loadConfig(file, secretsIn(folder))).toThrow('the environment has no BACKEND_AUTHORIZATION');
  expect(loadConfig(file, { ...secretsIn(folder), BACKEND_AUTHORIZATION: 'Bearer b' })).toMatchObject({
    upstream: { url: 'http://payments:9000' },
    auth: { forward: 'replace', replaceWith: 'Bearer b', keys: { source: 'file' } },
  });
  const template = read('config/gateway.init.yaml');
  const comments = (text: string) => text.match(/#.*/g);
  const written = readFileSync(file, 'utf8');
  expect(comments(written)).toEqual(comments(template));
  const env = { ...secretsIn(folder), BACKEND_AUTHORIZATION: 'Bearer b' };
  const chosen = parseConfig(written.replace('# idempotency', 'idempotency'), env);
  const keys = chosen.operations.map(({ idempotency }) => idempotency.key);
  expect(keys).toEqual(['optional', 'required', 'optional']);

  const other = newFolder();
  const ofBackend = await init(other, ['--backend', 'http://a', '--keys', 'upstream']);
  expect(ofBackend).toMatchObject({ code: 0, stdout: '' });
  expect(readdirSync(other)).toEqual(['gateway.yaml', 'secrets.env']);
  const { auth } = loadConfig(join(other, 'gateway.yaml'), secretsIn(other));
  expect(auth).toMatchObject({ forward: 'keep', keys: { source: 'upstream' } });
});

it('init asks again after a wrong answer, and says what is wrong with it', async () => {
  const folder = newFolder();
  const lines = ['', 'ftp://a', 'http://a', 'ldap', 'file', 'a b', 'M-7', 'no', 'keep', ''];
  const asked = await init(folder, [], lines.join('\n'), true);
  expect(asked).toMatchObject({ code: 0, stdout: expect.stringMatching(/^og_live_/) });
  const told = asked.stderr.match(/(?<=^.*The answer ).+/gm);
  expect(told).toEqual([
    'is missing.',
    `${upstreamOptions.shape.url.safeParse('ftp://a').error?.issues[0]?.message}.`,
    'takes file, upstream.',
    expect.stringMatching(/^must be/),
    'takes keep, strip, replace.',
  ]);
  const { upstream, auth } = loadConfig(join(folder, 'gateway.yaml'), secretsIn(folder));
  expect([upstream.url, auth.forward]).toEqual(['http://a', 'keep']);
  const ended = await init(newFolder(), [], 'ftp://a\n', true);
  expect(ended).toMatchObject({
    code: 64,
    stderr: expect.stringMatching(/: oncegate: --backend is missing/),
  });
});

it('init writes nothing if an option is missing or wrong', async () => {
  const backend = ['--backend', 'http://a'];
  const cases: [args: string[], code: number, reason: RegExp][] = [
    [[], 64, /--backend is missing/],
    [backend, 64, /--merchant is missing/],
    [[...backend, '--keys', 'ldap'], 64, /--keys takes file, upstream/],
    [[...backend, '--merchant', 'M', '--forward', 'no'], 64, /--forward takes keep, strip, replace/],
    ...['payments', 'ftp://payments', 'http://payments/v1'].map((address): [string[], number, RegExp] => [
      ['--backend', address, '--merchant', 'M'],
      64,
      /--backend must be an origin such as \S+, with http or https and without path/,
    ]),
    [[...backend, '--merchant', 'a b'], 64, /--merchant must be/],
  ];
  for (const [args, code, reason] of cases) {
    const folder = newFolder();
    const ended = await init(folder, args);
    expect({ args, ...ended }).toMatchObject({ args, code, stdout: '' });
    expectPlain(ended);
    expect(ended.stderr).toMatch(reason);
    expect(readdirSync(folder)).toEqual([]);
  }
  const file = join(newFolder(), 'file');
  writeFileSync(file, '');
  for (const folder of [file, join(file, 'new')]) {
    const ended = await init(folder, [...backend, '--merchant', 'M']);
    expect(ended).toEqual({ code: 1, stdout: '', stderr: `oncegate: ${file} is not a folder\n` });
  }
});

it('init names the server of the store, whose address is a secret, and says how its tables are made', async () => {
  const postgres = await startPostgres();
  for (const [kind, url] of Object.entries({ postgres: postgres.url, redis: 'redis://127.0.0.1:6379' })) {
    const folder = newFolder();
    const written = await init(folder, [
      '--backend',
      'http://payments:9000',
      '--merchant',
      'M-7',
      '--store',
      kind,
    ]);
    expect(written.code).toBe(0);
    expect(written.stderr).toContain(
      ` Write STORE_URL (${kind}://USER:PASSWORD@HOST:PORT/DATABASE) into ${folder}/secrets.env.`,
    );
    const file = join(folder, 'gateway.yaml');
    const env = { ...secretsIn(folder), STORE_URL: url };
    const text = readFileSync(file, 'utf8');
    expect(parseConfig(text, env).store).toMatchObject({ kind, url });
    // The stores that were not chosen are shown in comments.
    const other = kind === 'postgres' ? 'redis' : 'postgres';
    expect(text.match(/store: \{ kind: \w+/g)).toEqual([`store: { kind: ${kind}`, `store: { kind: ${other}`]);
    expect(existsSync(join(folder, 'data'))).toBe(false);
    const step = `oncegate store prepare --config ${file}`;
    expect(written.stderr.includes(`\n  ${step}\n`)).toBe(kind === 'postgres');
    const prepared = await run(step.split(' ').slice(1), { env });
    expect(prepared.code).toBe(kind === 'postgres' ? 0 : 1);
  }
  const wrong = await init(newFolder(), [
    '--backend',
    'http://payments:9000',
    '--merchant',
    'M',
    '--store',
    'disk',
  ]);
  expect(wrong).toMatchObject({ code: 64, stderr: expect.stringContaining('--store takes sqlite') });
});
