import { spawn, spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, request, type Server } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { listen } from '../../src/gateway/http-server.ts';
import { temporaryFolder, testConfig } from '../support/config.ts';
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

interface Run {
  pid: number | undefined;
  code: number | null;
  output: string;
  errors: string;
}

/** Runs an example as a merchant would. */
async function run(
  name: string,
  url: string,
  folder: string,
  amount = '12.5',
  account = '0123456789',
): Promise<Run> {
  const [command = '', ...args] = PROGRAMS[name] ?? [];
  const child = track(
    spawn(command, [...args, 'invoice-7', amount, '058', account], {
      cwd: folder,
      env: { ...process.env, API_URL: url, SECRET_KEY: 'sk_sandbox_alpha' },
      stdio: ['ignore', 'pipe', 'pipe'],
    }),
  );
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const { stdout, stderr } = child;
  if (!stdout || !stderr) throw new Error('the child has no pipes');
  const [output, errors, code] = await Promise.all([text(stdout), text(stderr), exited]);
  return { pid: child.pid, code, output, errors };
}

/** What stands between the merchant and the gateway. */
interface Wire {
  url: string;
  /** The port of the gateway. */
  port: number;
  /** The idempotency keys that were sent. */
  keys: Set<string>;
}

/** A proxy that asks the sandbox for a fault, and can lose the first answer, refuse the first request with this Retry-After, or pass on these bytes of the first answer only. */
async function openWire(
  port: number,
  fault?: string,
  losesFirst = false,
  refusesFirst?: string,
  bytes?: number,
): Promise<Wire> {
  let hasLost = !losesFirst;
  let refusal = refusesFirst;
  let passed = bytes;
  const wire: Wire = { url: '', port, keys: new Set() };
  const server: Server = createServer((req, res) => {
    wire.keys.add(String(req.headers['x-service-idempotency']));
    if (refusal !== undefined) {
      res.writeHead(429, { 'Retry-After': refusal }).end();
      refusal = undefined;
      return;
    }
    const headers = { ...req.headers, ...(fault && { 'x-sandbox-fault': fault }) };
    const onward = request({ port: wire.port, path: req.url, method: req.method, headers, agent: false });
    onward.on('error', () => req.socket.destroy());
    onward.on('response', (answer) => {
      answer.on('error', () => req.socket.destroy());
      if (!hasLost) {
        hasLost = true;
        answer.resume().once('end', () => req.socket.resetAndDestroy());
        return;
      }
      res.writeHead(answer.statusCode ?? 0, answer.headers);
      if (passed === undefined) {
        answer.pipe(res);
        return;
      }
      const end = passed;
      passed = undefined;
      answer.once('data', (data) => res.write(data.subarray(0, end), () => req.socket.end()));
    });
    req.pipe(onward);
  });
  wire.url = `http://127.0.0.1:${await listen(server, '127.0.0.1', 0)}`;
  servers.push(server);
  return wire;
}

/** The payouts under the one key that was sent. */
function payouts({ keys }: Wire, { sandbox }: Stack = stack): number {
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
    .replace(/\d{4}-\d\d-\d\dT[\d:]+(?:Z|[+-][\d:]+)/, new Date(Date.now() - byMs).toISOString())
    .replace(/(?<=\n|"at": ?)(\d{13})\b/, (at) => `${Number(at) - byMs}`)
    .replace(/(?<=\n|"at": ?)(\d{10})\b/, (at) => `${Number(at) - byMs / 1000}`);
  expect(old).not.toBe(now);
  writeFileSync(file, old);
}

describe.concurrent.each(Object.keys(PROGRAMS))('%s', (name) => {
  it('is shorter than 40 lines', () => {
    const lines = readFileSync(join(EXAMPLES, name), 'utf8').trim().split('\n');
    expect(lines.length).toBeLessThan(40);
  });

  it('sends again after the answers that docs/merchants.md marks so', () => {
    const table = readFileSync(join(EXAMPLES, '..', 'docs', 'merchants.md'), 'utf8').matchAll(
      /^\| `(\w+)` \| [\d, ]+ \|[^|]*\|(.*)\|$/gm,
    );
    const again = [...table].filter(([, , todo = '']) => /\bagain\b/.test(todo)).map(([, code = '']) => code);
    expect(again.length).toBeGreaterThan(5);
    const source = readFileSync(join(EXAMPLES, name), 'utf8');
    for (const code of [...again, 'outcome_unknown', 'response_not_stored'])
      expect(source).toMatch(new RegExp(`\\b${code}\\b`));
  });

  it('gets the result although the first answer was lost, and again when it is run again', async () => {
    const wire = await openWire(stack.port, undefined, true);
    const folder = newFolder();
    const first = await run(name, wire.url, folder);
    expect(first).toMatchObject({ code: 0, output: expect.stringContaining('transaction_id') });
    expect(await run(name, wire.url, folder)).toMatchObject({ code: 0, output: first.output });
    expect(payouts(wire)).toBe(1);
  });

  it('waits for a slow backend', async () => {
    const wire = await openWire(stack.port, 'delay=3000');
    expect(await run(name, wire.url, newFolder())).toMatchObject({ code: 0 });
    expect(payouts(wire)).toBe(1);
  });

  it('says that the outcome is unknown, and pays no second time', async () => {
    const wire = await openWire(stack.port, 'execute-then-reset');
    const folder = newFolder();
    const unknown = { code: 2, errors: expect.stringMatching(/^unknown: do not pay by other means/) };
    expect(await run(name, wire.url, folder)).toMatchObject(unknown);
    expect(await run(name, wire.url, folder)).toMatchObject(unknown);
    expect(payouts(wire)).toBe(1);
  });

  it('does not send a key again that the gateway may have forgotten', async () => {
    const wire = await openWire(stack.port);
    const folder = newFolder();
    expect(await run(name, wire.url, folder)).toMatchObject({ code: 0 });
    makeOlder(folder, 23 * HOUR_MS);
    const calls = stack.sandbox.requests.ofKey([...wire.keys][0] ?? '');
    expect(await run(name, wire.url, folder)).toMatchObject({
      code: 2,
      errors: expect.stringMatching(/^unknown: do not pay by other means/),
    });
    expect(stack.sandbox.requests.ofKey([...wire.keys][0] ?? '')).toBe(calls);
    expect(payouts(wire)).toBe(1);
  });

  it('does not send a key again that has become too old while it waited', async () => {
    const wire = await openWire(stack.port);
    const folder = newFolder();
    expect(await run(name, wire.url, folder)).toMatchObject({ code: 0 });
    makeOlder(folder, 23 * HOUR_MS - 5000);
    const asksToWait = await openWire(stack.port, undefined, false, '6');
    expect(await run(name, asksToWait.url, folder)).toMatchObject({ code: 2 });
    expect(payouts(wire)).toBe(1);
  });

  it('pays once when it is started five times at the same moment', async () => {
    const wire = await openWire(stack.port, 'delay=300');
    const folder = newFolder();
    const runs = await Promise.all(Array.from({ length: 5 }, () => run(name, wire.url, folder)));
    expect(runs.map(({ code }) => code)).toEqual([0, 0, 0, 0, 0]);
    expect(payouts(wire)).toBe(1);
  });

  it('writes to no file that a process with the same id in another container may have linked', async () => {
    const wire = await openWire(stack.port);
    const folder = newFolder();
    const { pid } = await run(name, wire.url, folder);
    const files = readdirSync(folder);
    expect(files.length).toBeGreaterThan(1);
    expect(files.filter((file) => file.endsWith(`.${pid}`))).toEqual([]);
  });

  it('pays no other amount, whatever the account number is', async () => {
    const wire = await openWire(stack.port);
    const account = '0123456789","amount":9000,"account_number":"0123456789';
    const { code } = await run(name, wire.url, newFolder(), '12.5', account);
    expect(code).toBeGreaterThan(0);
    expect(stack.sandbox.ledger.payouts({ key: [...wire.keys][0] ?? 'none was sent' })).toBe(0);
  });

  it('pays no part of an amount that is not a number', async () => {
    const wire = await openWire(stack.port);
    expect((await run(name, wire.url, newFolder(), '12,5')).code).toBeGreaterThan(0);
    expect(stack.sandbox.ledger.payouts({ key: [...wire.keys][0] ?? 'none was sent' })).toBe(0);
  });

  it('sends again if Retry-After is a date, as proxies write it', async () => {
    const wire = await openWire(stack.port, undefined, false, 'Wed, 21 Oct 2015 07:28:00 GMT');
    expect(await run(name, wire.url, newFolder())).toMatchObject({ code: 0 });
    expect(payouts(wire)).toBe(1);
  });

  it('does not take half of a problem for a refusal', async () => {
    // The whole one says that the outcome is unknown.
    const { url } = await openWire(stack.port, 'execute-then-reset', false, undefined, 60);
    expect((await run(name, url, newFolder())).code).toBe(2);
  });

  it('does not call a payout refused because its secret key is', async () => {
    const wire = await openWire(stack.port);
    const folder = newFolder();
    expect(await run(name, wire.url, folder)).toMatchObject({ code: 0 });
    const refusing = createServer((_req, res) => {
      res.writeHead(401, { 'Content-Type': 'application/problem+json' });
      res.end(JSON.stringify({ success: false, error: { code: 'invalid_key' } }));
    });
    servers.push(refusing);
    const url = `http://127.0.0.1:${await listen(refusing, '127.0.0.1', 0)}`;
    expect((await run(name, url, folder)).code).toBe(2);
  });

  it('shows a refusal', async () => {
    const wire = await openWire(stack.port);
    const refused = { code: 1, output: expect.stringContaining('amount') };
    expect(await run(name, wire.url, newFolder(), '-1')).toMatchObject(refused);
    expect(payouts(wire)).toBe(0);
  });
});

it('every example gets the result of a payout during which the gateway is restarted', async () => {
  const folder = temporaryFolder();
  const config = testConfig(folder, stack.sandbox.url);
  const first = await spawnGateway(config, {}, folder);
  const running = await Promise.all(
    Object.keys(PROGRAMS).map(async (name) => {
      const wire = await openWire(first.port, 'delay=1500');
      return { wire, ended: run(name, wire.url, newFolder()) };
    }),
  );
  const isSent = ({ wire: { keys } }: { wire: Wire }) =>
    [...keys].some((key) => stack.sandbox.requests.ofKey(key) > 0);
  await until(() => running.some(isSent));
  const gone = first.end();
  const second = await spawnGateway(config, {}, folder);
  await gone;
  for (const { wire } of running) wire.port = second.port;
  for (const { wire, ended } of running) {
    expect(await ended).toMatchObject({ code: 0 });
    expect(payouts(wire)).toBe(1);
  }
});
