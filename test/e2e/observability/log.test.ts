import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { describe, expect, it } from 'vitest';
import { EVENTS } from '../../../src/telemetry/events.ts';
import { BEARER, send, type TestAnswer, withdraw } from '../../support/client.ts';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { idle } from '../../support/metrics.ts';
import { startRedis } from '../../support/redis-server.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openSandbox, stackForFile } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { echoingWebSockets } from '../../support/web-sockets.ts';
import { busyTraffic, sections } from './support/traffic.ts';

const stack = await stackForFile({ upstream: { responseTimeoutMs: 20_000 } });

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

type Line = Record<string, unknown>;

/** The lines of the requests that `act` made. The catalogue of log lines says which fields they may have. */
async function linesOf(act: () => Promise<unknown>): Promise<Line[]> {
  await idle(stack.adminUrl);
  const from = stack.log.length;
  await act();
  await idle(stack.adminUrl);
  return stack.log.slice(from).filter(({ msg }) => msg === 'request');
}

/** The line of the one request that `act` made, and its answer. */
async function lineOf<T>(act: () => Promise<T>): Promise<{ line: Line; answer: T }> {
  let answer: T | undefined;
  const lines = await linesOf(async () => {
    answer = await act();
  });
  expect(lines).toHaveLength(1);
  return { line: lines[0] as Line, answer: answer as T };
}

const ROWS: [string, () => Promise<TestAnswer>, Line][] = [
  [
    'an execution',
    () => withdraw(stack.url, { key: 'a', fault: 'delay=50' }),
    {
      ...{
        requestId: expect.stringMatching(UUID),
        client: '127.0.0.1',
        merchant: 'M-ALPHA',
        keyId: 'alpha-1',
      },
      ...{ operation: 'withdraw', method: 'POST', path: '/v1/index.php', outcome: 'executed', waitMs: 0 },
      recordId: expect.stringMatching(/^[0-9a-f]{16}$/),
    },
  ],
  [
    'a secret key that may not call the operation',
    () => withdraw(stack.url, { secret: 'sk_test_balance_only' }),
    { outcome: 'insufficient_scope', status: 403, operation: 'withdraw', keyId: 'alpha-balance' },
  ],
  [
    'a request that is passed through, whose path may have an account number',
    () => send(stack.url, { path: '/v3/accounts/0123456789/NG55-81Z?a=1', headers: BEARER }),
    {
      outcome: 'passed_through',
      status: 404,
      operation: 'undeclared',
      path: '/v3/accounts/:redacted/:redacted',
    },
  ],
];

describe('a request has one line with what is known about it', () => {
  it('when it was answered', () =>
    eachRowInTurn(ROWS, async ([, act, expected]) => {
      const { line, answer } = await lineOf(act);
      expect(line).toMatchObject({ ...expected, status: answer.status });
      expect(line).not.toHaveProperty('merchantGone');
      if (line.outcome === 'executed') {
        expect(line.upstreamMs).toBeGreaterThan(0);
        expect(line.durationMs).toBeGreaterThanOrEqual(Number(line.upstreamMs));
      }
    }));

  it('when it was replayed: the record id of the first request, and no time at the backend', async () => {
    const [first, replay] = await linesOf(async () => {
      await withdraw(stack.url, { key: 'b' });
      await withdraw(stack.url, { key: 'b', secret: 'sk_sandbox_alpha_2' });
    });
    expect(replay).toMatchObject({ outcome: 'replayed', status: 201, keyId: 'alpha-2', upstreamMs: 0 });
    expect(replay?.recordId).toBe(first?.recordId);
    expect(replay?.requestId).not.toBe(first?.requestId);
  });
});

/** Parts of credentials, of keys, of bodies and of queries. */
const FRAGMENTS = [
  ...['sk_', 'Bearer', 'order-', '0123456789', 'account_number', 'account=', 'key=', '471108.15', 'crumbs'],
  'NG55',
];

/** Requests with secrets where they do not belong, and whose answers have mistakes. */
async function oddRequests(url: string): Promise<void> {
  for (const fault of ['500-after', 'garbage', 'truncate', 'execute-then-hang'])
    await withdraw(url, { key: `order-${fault}`, amount: 471108.15, fault });
  for (const key of ['"order-1', 'order-é']) await withdraw(url, { key });
  await withdraw(url, { headers: { 'Idempotency-Key': '"order-1' } });
  for (const secret of ['sk_test_revoked', 'sk_nobody']) await withdraw(url, { key: 'order-2', secret });
  const headers = { ...BEARER, 'Content-Type': 'application/json', Cookie: 'session=crumbs' };
  const bodies = [
    '{"action":"withdraw","account_number":"0123456789","account_number":"0123456789"}',
    '{"action":"withdraw","account_number":"0123456789"',
    '{"action":"sk_sandbox_alpha"}',
  ];
  for (const body of bodies) await send(url, { method: 'POST', path: '/v1/index.php', headers, body });
  const paths = [
    '/v1/0123456789?account=0123456789&secret=sk_sandbox_alpha',
    '/v1/index.php/0123456789/NG55-81Z',
    '/v3/sk_sandbox_alpha/echo',
    '/v3/echo?key=order-3',
    `/v3/payouts/order-${randomUUID()}`,
  ];
  for (const path of paths) await send(url, { path, headers });
  await send(url, { path: '/v2/get_balance', headers: { ...headers, 'x-service-idempotency': 'order-3' } });
  await send(url, { path: '/v2/get_balance', headers: { Authorization: 'Basic sk_sandbox_alpha' } });
}

it('standard output has one line of JSON for each request, and nothing secret that a merchant sent', async () => {
  const sandbox = await openSandbox({ onUpgrade: echoingWebSockets() });
  const redis = await startRedis();
  const config = testConfig(temporaryFolder(), sandbox.url, {
    ...onRedis(redis, 1000),
    ...sections,
    log: { level: 'debug' },
    upstream: { responseTimeoutMs: 1000 },
    idempotency: { ...sections.idempotency, completeRetryMs: 100 },
  });
  const gateway = await spawnGateway(config);
  const { url, adminUrl } = gateway;
  await busyTraffic({ ...gateway, sandbox });
  await oddRequests(url);
  // A complete that is late, and a start without an answer.
  const first = withdraw(url, { key: 'order-away', fault: 'delay=300' });
  await until(() => sandbox.requests.ofKey('order-away') === 1);
  await redis.kill();
  await first;
  await withdraw(url, { key: 'order-away' });
  const messages = () => gateway.lines.map((line) => (JSON.parse(line) as Line).msg);
  await until(() => messages().includes(EVENTS.store_lost.message));
  await redis.restart();
  await until(() => messages().includes(EVENTS.store_works.message));
  const requests = (await idle(adminUrl)).value('oncegate_requests_total');
  // After the exit there are still lines to read.
  const closed = once(gateway.child, 'close');
  expect(await gateway.end()).toBe(0);
  await closed;

  const ids = sandbox.ledger.transactions().map(({ id }) => id);
  for (const fragment of [...FRAGMENTS, ...ids])
    expect(gateway.lines.filter((line) => line.includes(fragment))).toEqual([]);
  const lines = gateway.lines.map((line) => JSON.parse(line) as Line);
  const access = lines.filter(({ msg }) => msg === 'request');
  expect(access).toHaveLength(requests ?? 0);
  expect(new Set(access.map(({ requestId }) => requestId)).size).toBe(requests);
  for (const line of access) {
    expect(line).toMatchObject({ level: 'info', time: expect.any(String) });
    expect(new Date(String(line.time)).toISOString()).toBe(line.time);
    if (line.operation !== 'none') expect(line.merchant).toMatch(/^M-(ALPHA|BRAVO|CHARLIE)$/);
  }
  const outage = lines.filter(({ msg }) => String(msg).startsWith('the store '));
  expect(outage).toMatchObject([
    { level: 'error', msg: EVENTS.store_lost.message, reason: expect.stringMatching(/^redis: /) },
    { level: 'warn', msg: EVENTS.store_works.message, lastedMs: expect.any(Number) },
  ]);
  expect(sandbox.ledger.duplicateKeys()).toEqual([]);
});
