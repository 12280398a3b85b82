import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { problemCodes } from '../../src/lib/problem-table.ts';
import { temporaryFolder, testConfig } from '../support/config.ts';
import { openLossyWire } from '../support/lossy-wire.ts';
import { metric } from '../support/metrics.ts';
import { openGateway, openStack, type Stack, type TestGateway } from '../support/stack.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';

/** The path of a client's requests to the backend. */
type Route = 'gateway' | 'lossy wire' | 'backend down' | 'releases 503';

interface Fault {
  /** The heading of the column. */
  title: string;
  route: Route;
  /** The sandbox's fault, requested with every attempt. */
  fault?: string;
  /** How long the client waits for an answer. */
  timeoutMs?: number;
  /** How often the backend executes the payment. */
  executions: 0 | 1;
}

/** Longer than any request takes that the test does not delay. */
const PATIENT_MS = 20_000;

const FAULTS: readonly Fault[] = [
  { title: 'the answer is lost', route: 'lossy wire', executions: 1 },
  { title: 'the backend is down at first', route: 'backend down', executions: 1 },
  { title: 'the backend is slow', route: 'gateway', fault: 'delay=4000', timeoutMs: 1500, executions: 1 },
  {
    title: 'the backend executes, then resets',
    route: 'gateway',
    fault: 'execute-then-reset',
    executions: 1,
  },
  { title: 'the backend answers 503 once', route: 'gateway', fault: '503-before,once', executions: 0 },
  { title: 'the same, 503 in `release`', route: 'releases 503', fault: '503-before,once', executions: 1 },
];

/** One payment, with as many attempts as the client makes. */
interface Call {
  url: string;
  key: string;
  /** The sandbox's fault. */
  fault?: string | undefined;
  timeoutMs: number;
}

/** What a client reported to the code that called it. */
type Report =
  | { kind: 'result'; transactionId?: string }
  | { kind: 'error'; error: string; status?: number; code?: string };

/** Makes these calls at once with a client in a separate process. Resolves to one report for each call. */
async function runClient(client: string, calls: readonly Call[]): Promise<Report[]> {
  const script = fileURLToPath(new URL(`./programs/${client}.mjs`, import.meta.url));
  const args = [script, JSON.stringify(calls)];
  const { stdout } = await promisify(execFile)(process.execPath, args).catch((error: Error) => {
    throw new Error(`${client}.mjs (npm run test:all installs the clients): ${error.message}`);
  });
  return JSON.parse(stdout);
}

const HEADING = '## What common clients report';

const { dependencies } = JSON.parse(
  readFileSync(new URL('./programs/package.json', import.meta.url), 'utf8'),
);
const version = (name: string) => `${name} ${dependencies[name]}`;

/** The names of the clients in the table, by the name of their program. */
const CLIENTS: Record<string, string> = {
  stripe: version('stripe'),
  square: version('square'),
  axios: `${version('axios')}, ${version('axios-retry')}`,
  got: version('got'),
  ky: version('ky'),
  undici: `${version('undici')}, RetryAgent`,
  curl: 'curl --retry 3 --retry-all-errors --fail',
};

/** The table that docs/merchants.md shows. `reports` are in the order of FAULTS. */
function tableOf(reports: ReadonlyMap<string, readonly Report[]>): string[] {
  const rows = Object.entries(CLIENTS).map(([client, title]) => [
    title,
    ...(reports.get(client) ?? []).map(cellOf),
  ]);
  const head = ['client', ...FAULTS.map(({ title }) => title)];
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`);
}

function cellOf(report: Report): string {
  if (report.kind === 'result') return 'result';
  const { error, status, code } = report;
  const name = error.includes(' ') ? error : `\`${error}\``;
  if (status === undefined) return name;
  // All other codes come from the backend.
  const isOurs = problemCodes.some((ours) => ours === code);
  return `${name}, ${status}${isOurs ? ` \`${code}\`` : ''}`;
}

function tableIn(markdown: string): string[] {
  const [, section = ''] = markdown.split(`${HEADING}\n`);
  const [body = ''] = section.split('\n## ');
  return body.split('\n').filter((line) => line.startsWith('|'));
}

/** A client's calls and reports, in the order of FAULTS. */
interface Measured {
  calls: Call[];
  reports: Report[];
  /** The key of a call straight to the backend. */
  unprotectedKey: string;
}

const measured = new Map<string, Measured>();
const gateways: TestGateway[] = [];
const closing: (() => Promise<unknown>)[] = [];
let stack: Stack;
let releasing: TestGateway;

async function openAnother(url: string, more: Parameters<typeof testConfig>[2] = {}): Promise<TestGateway> {
  const gateway = await openGateway(testConfig(temporaryFolder(), url, more));
  gateways.push(gateway);
  closing.push(() => gateway.shutdown());
  return gateway;
}

/** A loopback address that nothing else uses. */
const DOWN_HOST = '127.0.1.77';

const protectedPaths = ['/v1/index.php', '/v1/charges', '/v2/payments'];

beforeAll(async () => {
  // A second or two more than a slow backend takes must not matter.
  stack = await openStack({ upstream: { responseTimeoutMs: 20_000 } });
  gateways.push(stack);
  releasing = await openAnother(stack.sandbox.url, {
    operations: protectedPaths.map((path, at) => ({
      name: `payment-${at}`,
      match: { method: 'POST', path },
      idempotency: { key: 'optional', release: [401, 429, 503] },
    })),
  });
  await Promise.all(Object.keys(CLIENTS).map(measure));
  // A slow backend may execute after some clients have given up.
  for (const { adminUrl } of gateways)
    await until(async () => (await metric(adminUrl, 'oncegate_in_flight')) === 0);
}, 60_000);

afterAll(async () => {
  await Promise.all(closing.map((close) => close()));
  await stack?.close();
});

/** Runs the client against all faults at once. */
async function measure(client: string): Promise<void> {
  const lossy = await openLossyWire(stack.port, { losesFirst: true });
  // While the backend is down, no server of another test may get its port.
  const toBackend = await startProxy(stack.sandbox.port, DOWN_HOST);
  const down = await openAnother(`http://${toBackend.host}:${toBackend.port}`);
  toBackend.stopListening();
  const urls: Record<Route, string> = {
    gateway: stack.url,
    'lossy wire': lossy.url,
    'backend down': down.url,
    'releases 503': releasing.url,
  };
  const calls = FAULTS.map(({ route, fault, timeoutMs = PATIENT_MS }) => ({
    url: urls[route],
    key: randomUUID(),
    fault,
    timeoutMs,
  }));
  const unprotected = { url: stack.sandbox.url, key: randomUUID(), fault: '503-after,once' };
  const [reports] = await Promise.all([
    runClient(client, [...calls, { ...unprotected, timeoutMs: PATIENT_MS }]),
    until(() => down.log.some(({ outcome }) => outcome === 'upstream_unreachable'), PATIENT_MS).then(() =>
      toBackend.listen(),
    ),
  ]);
  measured.set(client, { calls, reports: reports.slice(0, -1), unprotectedKey: unprotected.key });
}

const transactionsOf = (key: string) => stack.sandbox.ledger.transactions({ key });

describe.each(Object.keys(CLIENTS))('%s', (client) => {
  it('pays at most once, and never reports the result of another payment', () => {
    const { calls, reports } = measured.get(client) as Measured;
    for (const [at, { title, executions }] of FAULTS.entries()) {
      const transactions = transactionsOf(calls[at]?.key ?? '');
      expect(transactions, title).toHaveLength(executions);
      const report = reports[at];
      if (report?.kind === 'result') expect(report.transactionId, title).toBe(transactions[0]?.id);
    }
  });

  it('pays twice without the gateway', () => {
    expect(transactionsOf((measured.get(client) as Measured).unprotectedKey)).toHaveLength(2);
  });
});

it('docs/merchants.md shows what the clients reported', () => {
  const document = readFileSync(new URL('../../docs/merchants.md', import.meta.url), 'utf8');
  const reports = new Map([...measured].map(([client, { reports }]) => [client, reports]));
  expect(tableIn(document), 'replace the rows by the expected ones').toEqual(tableOf(reports));
});
