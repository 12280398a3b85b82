import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { closeSync, globSync, openSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { stringify } from 'yaml';
import { loadBundle } from '../../../src/lib/load-bundle.ts';
import { openBlackHole } from '../../support/backend.ts';
import { isReplay, send, type TestAnswer, withdraw } from '../../support/client.ts';
import { expectPlain, newFolder, runProcess } from '../../support/command.ts';
import { configFile, configFor, type MoreConfig, testConfig } from '../../support/config.ts';
import { codeOf, loggedIn, TestBrowser } from '../../support/console.ts';
import { freePort } from '../../support/free-port.ts';
import { startRedis } from '../../support/redis-server.ts';
import { read } from '../../support/repository.ts';
import { MAIN, track, watch } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { startHere } from '../../support/started.ts';
import { onRedis } from '../../support/stores.ts';
import { begin, startTour } from '../../support/tour.ts';
import { until } from '../../support/until.ts';

/** Sends the request of a printed curl command. The tests of the README run curl itself. */
function sendCurl(command = ''): Promise<TestAnswer> {
  const words = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain ?? '');
  const after = (flag: string) => words.filter((_, at) => words[at - 1] === flag);
  const [body] = after('-d');
  const headers = Object.fromEntries(after('-H').map((field) => field.split(/: (.*)/s).slice(0, 2)));
  const { origin, pathname: path } = new URL(words[2] ?? '');
  return send(origin, { path, headers, ...(body ? { method: 'POST', body } : {}) });
}

it('V8 takes the compiled code that the command comes with', () => {
  const bundles = globSync('command/run-*.cjs', { cwd: dirname(MAIN) });
  expect(bundles).toHaveLength(1);
  expect(loadBundle(join(dirname(MAIN), `${bundles}`)).script.cachedDataRejected).toBe(false);
});

it('start prints three commands that work, and their results survive a kill', async () => {
  const data = newFolder();
  const first = await startTour(['--data', data]);
  const { commands } = first;
  const payouts = async ({ urlOf }: typeof first) =>
    (await send(urlOf('sandbox'), { path: '/_sandbox/ledger' })).json<{ payouts: number }>().payouts;
  expect(commands).toHaveLength(3);
  expect(commands[2]).toBe(commands[1]);
  const [balance, paid, again] = [
    await sendCurl(commands[0]),
    await sendCurl(commands[1]),
    await sendCurl(commands[2]),
  ];
  expect(balance.status).toBe(200);
  expect(JSON.parse(`${balance.body}`).data).toEqual({
    business_name: expect.any(String),
    merchant_code: 'M-ALPHA',
    balance: 1_000_000,
    currency: expect.stringMatching(/^[A-Z]{3}$/),
  });
  expect(paid.status).toBe(201);
  expect(paid.headers).not.toHaveProperty('idempotent-replayed');
  expect(JSON.parse(`${paid.body}`)).toMatchObject({ success: true, data: { amount: 125.5 } });
  expect([again.status, again.headers['idempotent-replayed'], again.body]).toEqual([201, 'true', paid.body]);
  expect(await payouts(first)).toBe(1);
  for (const path of ['/healthz', '/readyz', '/metrics'])
    expect((await send(first.urlOf('admin'), { path })).status, path).toBe(200);
  const [, code = ''] = /\/console\/#\/login\/([\w-]{43})$/m.exec(first.output()) ?? [];
  await (await loggedIn(first.urlOf('admin'), code)).ask('api/overview');
  expect(codeOf(await new TestBrowser(first.urlOf('admin')).login(code))).toBe('401 wrong_token');
  await first.printed(/next link: http\S+#\/login\/[\w-]{43}$/, 1);
  expect(await first.end('SIGKILL')).toEqual([null, 'SIGKILL']);

  const second = await startTour(['--data', data]);
  const later = await sendCurl(second.commands[2]);
  expect([later.status, later.headers['idempotent-replayed'], later.body]).toEqual([201, 'true', paid.body]);
  expect(await payouts(second)).toBe(1);
  const left = JSON.parse(`${(await sendCurl(second.commands[0])).body}`);
  expect(left.data.balance).toBe(1_000_000 - 125.5);
  expect(await second.end('SIGTERM')).toEqual([0, null]);
  for (const tour of [first, second]) expect(tour.output()).not.toMatch(/Warning|Error|^\s+at /m);
});

it('start --config runs only the gateway of the configuration, as serve --config does', async () => {
  const file = configFile(testConfig(newFolder(), 'http://127.0.0.1:9'));
  for (const command of ['start', 'serve']) {
    const child = begin([command, '--config', file]);
    const [line = ''] = await child.printed(/"msg":"listening"/);
    expect((await send(`http://127.0.0.1:${JSON.parse(line).port}`)).status).toBe(401);
    expect(child.output()).not.toMatch(/sandbox|#\/login/);
    expect(await child.end('SIGTERM')).toEqual([0, null]);
  }
});

it('a gateway that cannot write its log continues to serve', async () => {
  const [port, adminPort] = [await freePort(), await freePort()];
  const at = (port: number) => ({ host: '127.0.0.1', port });
  const file = configFile(configFor(await openSandbox(), { listen: at(port), admin: at(adminPort) }));
  // Every write to this file fails with ENOSPC.
  const full = openSync('/dev/full', 'w');
  const gateway = track(
    spawn(process.execPath, [MAIN, 'serve', '--config', file], { stdio: ['ignore', full, 'pipe'] }),
  );
  closeSync(full);
  const { output } = watch(gateway);
  const exited = once(gateway, 'exit');
  const url = `http://127.0.0.1:${port}`;
  const readyz = () => send(`http://127.0.0.1:${adminPort}`, { path: '/readyz' }).catch(() => undefined);
  await until(async () => (await readyz())?.status === 200);
  const key = randomUUID();
  const answer = withdraw(url, { key, fault: 'delay=400' });
  // Further log lines, each of which is written within 100 ms.
  for (let i = 0; i < 5; i++) expect((await send(url)).status).toBe(401);
  expect(await answer).toMatchObject({ status: 201 });
  expect(isReplay(await withdraw(url, { key }))).toBe(true);
  gateway.kill('SIGTERM');
  expect(await exited).toEqual([0, null]);
  expect(output()).toBe('');
});

const warned = ({ log }: Awaited<ReturnType<typeof startHere>>) =>
  log.filter(({ level }) => level === 'warn').map(({ warning }) => warning);

it('each warning is logged once at the start, also while the backend accepts no connection', async () => {
  const redis = await startRedis({ appendonly: false });
  const path = join(newFolder(), 'keys.yaml');
  const keys = [
    { id: 'good', dangerouslyPlainSecret: 'sk_good' },
    { id: 'old', dangerouslyPlainSecret: 'sk_old', expiresAt: '2020-01-01T00:00:00Z' },
    { id: 'typo', dangerouslyPlainSecret: 'sk_typo', scopes: ['withdrw'] },
  ];
  writeFileSync(path, stringify({ merchants: [{ code: 'M-1', keys }] }));
  const match = { method: 'POST', path: '/v1/pay' };
  const hole = await openBlackHole();
  onTestFinished(hole.close);
  const more: MoreConfig = {
    ...onRedis(redis),
    upstream: { url: hole.url, connectTimeoutMs: 1000 },
    auth: { keys: { source: 'file', path } },
    operations: [{ name: 'pay', match, idempotency: { key: 'optional', inDoubt: 'retry' } }],
  };
  const gateway = await startHere(configFor(await openSandbox(), more));
  expect(warned(gateway)).toEqual([
    expect.stringMatching(/^store: redis runs without appendonly/),
    expect.stringMatching(/^operations: pay has inDoubt: retry: .*pays twice/),
    'keys: expired: M-1/old',
    'keys: no operation has the scope "withdrw": M-1/typo',
  ]);
  const { status, body } = await send(gateway.adminUrl, { path: '/readyz' });
  expect(status).toBe(503);
  expect(body.toString()).toContain('redis runs without appendonly');
  // /readyz needs no token, so it must not name merchants.
  expect(body.toString()).not.toContain('M-1');
  await gateway.shutdown();
  expect(warned(gateway)).toHaveLength(4);
});

/** Gives this Node another version number, and fails if the entry loads the bundle of the command. */
const preload = (version: string) => `
  import vm from 'node:vm';
  Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '${version}' } });
  vm.Script = function (source, { filename }) {
    throw new Error('loaded ' + filename);
  };`;

const runAs = (version: string, ...args: string[]) =>
  runProcess(args, {
    env: { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(preload(version))}` },
  });

const OLD_NODE =
  /^oncegate: Node 24\.18 or newer is needed, and \S+ is Node [\d.]+: (?:npm install node-linux-\w+@24 brings it into a project, where npx and npm run find it|https:\/\/nodejs\.org has it)\.\n$/;

describe('an old Node', () => {
  it.each(['22.22.0', '24.17.9'])('%s is refused in one sentence', async (version) => {
    const ended = await runAs(version, 'start', '--config', 'none.yaml');
    expect([ended.code, ended.stdout]).toEqual([1, '']);
    expect(ended.stderr).toMatch(OLD_NODE);
    expect(ended.stderr).toContain(`is Node ${version}: `);
    expectPlain(ended);
  });

  it.each(['24.18.0'])('is not %s: it loads the command', async (version) => {
    expect((await runAs(version, '--help')).stderr).toMatch(/loaded .*\/dist\/command\/run-/);
  });
});

it('the package, the setup and the README name the same version', () => {
  expect(JSON.parse(read('package.json')).engines.node).toBe('>=24.18');
  expect(JSON.parse(read('package-lock.json')).packages[''].engines.node).toBe('>=24.18');
  expect(read('scripts/setup.mjs')).toContain('(major === 24 && minor < 18)');
  expect(read('README.md')).toContain('needs Node 24.18');
});
