import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder, testConfig } from '../support/config.ts';
import { metric } from '../support/metrics.ts';
import { openGateway, openStack, type Stack, type TestGateway } from '../support/stack.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { FAULTS, PATIENT_MS, type Route } from './faults.ts';
import { openLossyWire } from './lossy-wire.ts';
import { type Call, type Report, runClient } from './run-client.ts';
import { CLIENTS, tableIn, tableOf } from './table.ts';

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
      idempotency: { key: 'optional', release: [401, 403, 429, 503] },
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
  const lossy = await openLossyWire(stack.port);
  closing.push(() => lossy.close());
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
