import { execFile, spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { listen } from '../../src/gateway/http-server.ts';
import { temporaryFolder, testConfig } from '../support/config.ts';
import { type LossyWire, openLossyWire } from '../support/lossy-wire.ts';
import { spawnGateway, track } from '../support/spawn.ts';
import { openStack, type Stack } from '../support/stack.ts';
import { until } from '../support/until.ts';

const EXAMPLES = fileURLToPath(new URL('../../examples', import.meta.url));
const PACKAGES = fileURLToPath(new URL('../clients/programs/node_modules', import.meta.url));
const built = temporaryFolder();

/** How each example is run. */
const PROGRAMS: Record<string, string[]> = {
  'payout.sh': ['sh', join(EXAMPLES, 'payout.sh')],
  'payout.mjs': [process.execPath, join(EXAMPLES, 'payout.mjs')],
  'payout-ky.mjs': [process.execPath, join(built, 'payout-ky.mjs')],
  'payout.py': ['python3', join(EXAMPLES, 'payout.py')],
  'payout.php': ['php', join(EXAMPLES, 'payout.php')],
  'Payout.java': ['java', '-Xshare:auto', '-XX:TieredStopAtLevel=1', '-cp', built, 'Payout'],
  'payout.go': [join(built, 'payout')],
};

const HOUR_MS = 3_600_000;

const servers: Server[] = [];
let stack: Stack;

function build(command: string, ...args: string[]): void {
  const { status, stderr, error } = spawnSync(command, args, {
    encoding: 'utf8',
    env: { ...process.env, GOCACHE: join(built, 'go-cache'), GO111MODULE: 'off' },
  });
  if (status !== 0) throw error ?? new Error(`${command} ${args.join(' ')}: ${stderr}`);
}

beforeAll(async () => {
  // A second or two more than a slow backend takes must not matter.
  stack = await openStack({ upstream: { responseTimeoutMs: 20_000 } });
  cpSync(join(EXAMPLES, 'payout-ky.mjs'), join(built, 'payout-ky.mjs'));
  symlinkSync(PACKAGES, join(built, 'node_modules'));
  build('javac', '-d', built, join(EXAMPLES, 'Payout.java'));
  build('go', 'build', '-o', join(built, 'payout'), join(EXAMPLES, 'payout.go'));
}, 120_000);
afterAll(async () => {
  for (const server of servers) {
    server.closeAllConnections();
    server.close();
  }
  await stack.close();
});

/** Runs an example as a merchant would. */
function run(name: string, url: string, cwd: string, amount = '12.5', account = '0123456789') {
  const [command = '', ...args] = PROGRAMS[name] ?? [];
  const env = { ...process.env, API_URL: url, SECRET_KEY: 'sk_sandbox_alpha' };
  return new Promise<{ pid?: number | undefined; code: number; output: string; errors: string }>(
    (resolve) => {
      const all = [...args, 'invoice-7', amount, '058', account];
      const child = track(
        execFile(command, all, { cwd, env }, (error, output, errors) =>
          resolve({ pid: child.pid, code: error ? Number(error.code) : 0, output, errors }),
        ),
      );
    },
  );
}

/** The payouts under the one key that was sent. */
function payouts({ keys }: LossyWire, { sandbox }: Stack = stack): number {
  expect(keys.size).toBe(1);
  const [key = ''] = keys;
  return sandbox.ledger.payouts({ key });
}

const newFolder = () => mkdtempSync(join(built, 'run-'));

/** Changes the time of the first run, in each of the forms that the examples write. */
function makeOlder(folder: string, byMs: number): void {
  const [saved = ''] = readdirSync(folder).filter((file) => /^payout-invoice-7\.\w+$/.test(file));
  const file = join(folder, saved);
  const now = readFileSync(file, 'utf8');
  const old = now
    .replace(
      /\d{4}-\d\d-\d\dT[\d:]+(?:Z|[+-][\d:]+)/,
      new Date(Date.now() - byMs).toISOString().replace(/\.\d+/, ''),
    )
    .replace(/(?<=\n|"at": ?)(\d{13})\b/, (at) => `${Number(at) - byMs}`)
    .replace(/(?<=\n|"at": ?)(\d{10})\b/, (at) => `${Number(at) - byMs / 1000}`);
  expect(old).not.toBe(now);
  writeFileSync(file, old);
}

const UNKNOWN = { code: 2, errors: expect.stringMatching(/^unknown: do not pay by other means/) };

describe.concurrent.each(Object.keys(PROGRAMS))('%s', (name) => {
  it('is shorter than 40 lines, and does what `retry` says, whatever the code', async () => {
    expect(readFileSync(join(EXAMPLES, name), 'utf8').trim().split('\n').length).toBeLessThan(40);
    for (const [retry, code, sent] of [
      ['same_key', 0, 1],
      ['never', 2, 0],
      ['new_key', 2, 0],
    ] as const) {
      const wire = await openLossyWire(stack.port, { problemFirst: retry });
      expect((await run(name, wire.url, newFolder())).code).toBe(code);
      expect([retry, payouts(wire)]).toEqual([retry, sent]);
    }
  });

  it('does not follow a redirect, such as that to https or to a login, and takes it for no result', async () => {
    const requests: string[] = [];
    const redirecting = createServer((req, res) => {
      requests.push(`${req.method} ${req.url}`);
      res.writeHead(req.url === '/login' ? 200 : 302, { Location: '/login' }).end('<p>Log in</p>');
    });
    servers.push(redirecting);
    const url = `http://127.0.0.1:${await listen(redirecting, '127.0.0.1', 0)}`;
    expect(await run(name, url, newFolder())).toMatchObject(UNKNOWN);
    expect(requests).toEqual(['POST /v1/index.php']);
  });

  it('gets the result although the first answer was lost, again when it is run again, and pays no second time', async () => {
    const wire = await openLossyWire(stack.port, { losesFirst: true });
    const folder = newFolder();
    const first = await run(name, wire.url, folder);
    expect(first).toMatchObject({ code: 0, output: expect.stringContaining('transaction_id') });
    // A process with the same id in another container may have linked such a file.
    const files = readdirSync(folder);
    expect(files.length).toBeGreaterThan(1);
    expect(files.filter((file) => file.endsWith(`.${first.pid}`))).toEqual([]);
    expect(await run(name, wire.url, folder)).toMatchObject({ code: 0, output: first.output });
    // It is not the payout that is refused.
    const refusing = createServer((_req, res) => {
      res.writeHead(401, { 'Content-Type': 'application/problem+json' });
      res.end(JSON.stringify({ success: false, error: { code: 'invalid_key' } }));
    });
    servers.push(refusing);
    const refuses = `http://127.0.0.1:${await listen(refusing, '127.0.0.1', 0)}`;
    expect((await run(name, refuses, folder)).code).toBe(2);

    // The key becomes too old while the example waits; then it is too old at once.
    const calls = stack.sandbox.requests.ofKey([...wire.keys][0] ?? '');
    makeOlder(folder, 23 * HOUR_MS - 5000);
    const asksToWait = await openLossyWire(stack.port, { refusesFirst: '6' });
    expect(await run(name, asksToWait.url, folder)).toMatchObject({ code: 2 });
    makeOlder(folder, 23 * HOUR_MS);
    expect(await run(name, wire.url, folder)).toMatchObject(UNKNOWN);
    expect(stack.sandbox.requests.ofKey([...wire.keys][0] ?? '')).toBe(calls);
    expect(payouts(wire)).toBe(1);
  });

  it('waits for a slow backend', async () => {
    const wire = await openLossyWire(stack.port, { fault: 'delay=3000' });
    expect(await run(name, wire.url, newFolder())).toMatchObject({ code: 0 });
    expect(payouts(wire)).toBe(1);
  });

  it('says that the outcome is unknown, also if it gets only half of that answer', async () => {
    const wire = await openLossyWire(stack.port, { fault: 'execute-then-reset' });
    const folder = newFolder();
    for (const _ of ['once', 'twice']) expect(await run(name, wire.url, folder)).toMatchObject(UNKNOWN);
    expect(payouts(wire)).toBe(1);
    const half = await openLossyWire(stack.port, { fault: 'execute-then-reset', bytes: 60 });
    expect((await run(name, half.url, newFolder())).code).toBe(2);
  });

  it('pays once when it is started three times at the same moment', async () => {
    const wire = await openLossyWire(stack.port, { fault: 'delay=300' });
    const folder = newFolder();
    const runs = await Promise.all(Array.from({ length: 3 }, () => run(name, wire.url, folder)));
    expect(runs.map(({ code }) => code)).toEqual([0, 0, 0]);
    expect(payouts(wire)).toBe(1);
  });

  it('sends again if Retry-After is a date, as proxies write it', async () => {
    const wire = await openLossyWire(stack.port, { refusesFirst: 'Wed, 21 Oct 2015 07:28:00 GMT' });
    expect(await run(name, wire.url, newFolder())).toMatchObject({ code: 0 });
    expect(payouts(wire)).toBe(1);
  });

  it('shows a refusal, and pays no other amount than the one that was asked for', async () => {
    const wire = await openLossyWire(stack.port);
    const refused = { code: 1, output: expect.stringContaining('amount') };
    expect(await run(name, wire.url, newFolder(), '-1')).toMatchObject(refused);
    expect(payouts(wire)).toBe(0);
    const account = '0123456789","amount":9000,"account_number":"0123456789';
    const strange = await openLossyWire(stack.port);
    for (const words of [['12.5', account], ['12,5']] as const)
      expect((await run(name, strange.url, newFolder(), ...words)).code).toBeGreaterThan(0);
    for (const key of strange.keys) expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
  });
});

it('every example gets the result of a payout during which the gateway is restarted', async () => {
  const folder = temporaryFolder();
  const config = testConfig(folder, stack.sandbox.url);
  const first = await spawnGateway(config, {}, { folder });
  const running = await Promise.all(
    Object.keys(PROGRAMS).map(async (name) => {
      const wire = await openLossyWire(first.port, { fault: 'delay=1500' });
      return { wire, ended: run(name, wire.url, newFolder()) };
    }),
  );
  const isSent = ({ wire: { keys } }: { wire: LossyWire }) =>
    [...keys].some((key) => stack.sandbox.requests.ofKey(key) > 0);
  await until(() => running.some(isSent));
  const gone = first.end();
  const second = await spawnGateway(config, {}, { folder });
  await gone;
  for (const { wire } of running) wire.port = second.port;
  for (const { wire, ended } of running) {
    expect(await ended).toMatchObject({ code: 0 });
    expect(payouts(wire)).toBe(1);
  }
});
