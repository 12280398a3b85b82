import { once } from 'node:events';
import type { Socket } from 'node:net';
import { WebSocket } from 'ws';
import { send, withdraw } from '../../../support/client.ts';
import type { ConfigInput } from '../../../support/config.ts';
import { rawConnection, rawExchange } from '../../../support/raw.ts';
import { startRedis } from '../../../support/redis-server.ts';
import { openStack, type Stack } from '../../../support/stack.ts';
import { onRedis } from '../../../support/stores.ts';
import { until } from '../../../support/until.ts';
import { Scrape, scrape } from './scrape.ts';

const MAX_IN_FLIGHT = 3;
const MAX_STORED_BYTES = 1024;
const MAX_BODY_BYTES = 4096;

const bearer = { Authorization: 'Bearer sk_sandbox_alpha' };

const UNFINISHED_BYTES = 10;
const UNFINISHED_HEAD = [
  'POST /v1/index.php HTTP/1.1',
  'Host: gateway.test',
  `Authorization: ${bearer.Authorization}`,
  `Content-Length: ${UNFINISHED_BYTES}`,
  '\r\n',
].join('\r\n');

/** Makes a gateway end requests in every possible way, and returns its metrics. */
export async function everyOutcome(): Promise<Scrape> {
  const [main, edge] = await Promise.all([mainTraffic(), edgeTraffic()]);
  return new Scrape(main, edge);
}

async function mainTraffic(): Promise<string> {
  const redis = await startRedis();
  const stack = await openStack({ ...onRedis(redis), ...sections });
  try {
    await busyTraffic(stack);
    await redis.kill();
    await withdraw(stack.url, { key: 'no-store' });
    await send(stack.adminUrl, { path: '/readyz' });
    return await whileShuttingDown(stack);
  } finally {
    await stack.close();
  }
}

/** Requests that end in most of the ways. The configuration has to have `sections`. */
export async function busyTraffic(stack: Stack): Promise<void> {
  await answersOfTheBackend(stack);
  await conflicts(stack);
  await refusals(stack);
  await moreThanItTakes(stack);
}

/** Limits that few requests reach. */
export const sections: Partial<ConfigInput> = {
  limits: {
    inFlight: MAX_IN_FLIGHT,
    bodyBytes: MAX_BODY_BYTES,
    perMerchant: { merchants: { 'M-CHARLIE': { requests: 1, windowMs: 3_600_000 } } },
  },
  idempotency: { maxStoredBytes: MAX_STORED_BYTES },
  operations: [
    { name: 'balance', match: { method: 'GET', path: '/v2/get_balance' } },
    {
      name: 'withdraw',
      match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
      idempotency: { key: 'optional' },
    },
    { name: 'refund', match: { method: 'POST', path: '/v1/refunds' }, idempotency: { key: 'required' } },
  ],
};

async function answersOfTheBackend({ url, port }: Stack): Promise<void> {
  await withdraw(url, { key: 'executed' });
  await withdraw(url, { key: 'executed' });
  await withdraw(url, { key: 'released', fault: 'status=403' });
  await withdraw(url);
  await send(url, { path: '/v2/get_balance', headers: bearer });
  await send(url, { path: '/v3/echo', headers: bearer });
  const socket = new WebSocket(`ws://127.0.0.1:${port}/v3/ws`, { headers: bearer });
  await once(socket, 'open');
  socket.terminate();
}

async function conflicts({ url, adminUrl, sandbox }: Stack): Promise<void> {
  await withdraw(url, { key: 'broken-off', fault: 'execute-then-reset' });
  await withdraw(url, { key: 'gave-up', fault: 'status=504' });
  await withdraw(url, { key: 'broken-off' });
  await withdraw(url, { key: 'huge', fault: `huge=${2 * MAX_STORED_BYTES}` });
  await withdraw(url, { key: 'huge', fault: `huge=${2 * MAX_STORED_BYTES}` });
  await withdraw(url, { key: 'executed', amount: 11 });
  const first = withdraw(url, { key: 'slow', fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey('slow') > 0);
  await withdraw(url, { key: 'slow', fault: 'delay=60000', headers: { Prefer: 'wait=0' } });
  sandbox.endDelays('slow');
  await first;
  await idle(adminUrl);
}

async function refusals({ url, port, adminUrl }: Stack): Promise<void> {
  await send(url);
  await withdraw(url, { secret: 'sk_unknown' });
  await withdraw(url, { secret: 'sk_test_balance_only' });
  for (const key of ['patient', 'impatient']) await withdraw(url, { key, secret: 'sk_sandbox_charlie' });
  await withdraw(url, { key: '' });
  await send(url, { path: '/v1//index.php', headers: bearer });
  await send(url, { path: '/v1/index.php', method: 'POST', headers: bearer, body: '{"action":1}' });
  await send(url, { path: '/v1/refunds', method: 'POST', headers: bearer, body: '{}' });
  await send(url, {
    path: '/v1/refunds',
    method: 'POST',
    headers: { ...bearer, 'x-service-idempotency': 'large' },
    body: 'x'.repeat(MAX_BODY_BYTES + 1),
  });
  await rawExchange(port, 'GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n');
  const leaving = await unfinished(port);
  await until(async () => (await scrape(adminUrl)).value('oncegate_in_flight') === 1);
  leaving.destroy();
  await idle(adminUrl);
}

async function moreThanItTakes({ url, port, adminUrl }: Stack): Promise<void> {
  const held = await Promise.all(Array.from({ length: MAX_IN_FLIGHT }, () => unfinished(port)));
  await until(async () => (await scrape(adminUrl)).value('oncegate_in_flight') === MAX_IN_FLIGHT);
  await withdraw(url, { key: 'too-many' });
  for (const socket of held) socket.destroy();
  await idle(adminUrl);
}

/** An unfinished request keeps the gateway running; a connection that was idle so far sends a new request. */
async function whileShuttingDown({ port, adminUrl, gateway, shutdown }: Stack): Promise<string> {
  const [held, another] = [await unfinished(port), await rawConnection(port)];
  await until(async () => (await scrape(adminUrl)).value('oncegate_in_flight') === 1);
  const ended = shutdown();
  await until(async () => (await send(adminUrl, { path: '/readyz' })).body.includes('shutting down'));
  another.write('GET /v3/echo HTTP/1.1\r\nHost: a\r\n\r\n');
  const labels = { outcome: 'shutting_down' };
  await until(async () => (await scrape(adminUrl)).value('oncegate_requests_total', labels));
  held.destroy();
  another.destroy();
  await ended;
  return await gateway.metrics.text();
}

/** A request of an operation whose body never arrives. */
async function unfinished(port: number): Promise<Socket> {
  const socket = await rawConnection(port);
  socket.write(UNFINISHED_HEAD);
  return socket;
}

/** Outcomes that need an absent backend, or limits too tight for the other traffic. */
async function edgeTraffic(): Promise<string> {
  const stack = await openStack({
    limits: { bodyTimeoutMs: 100 },
    upstream: { responseTimeoutMs: 200 },
    idempotency: { undeclared: 'refuse' },
  });
  const { url, port, adminUrl, sandbox, gateway } = stack;
  try {
    await send(url, { path: '/v3/echo', headers: bearer });
    await withdraw(url, { key: 'no-answer', fault: 'execute-then-hang' });
    await sandbox.close();
    await withdraw(url, { key: 'nowhere' });
    await rawExchange(port, `${UNFINISHED_HEAD}{`);
    await idle(adminUrl);
    return await gateway.metrics.text();
  } finally {
    await stack.close();
  }
}

/** Resolves when all requests have been counted, which is shortly after their answers were read. */
export async function idle(adminUrl: string): Promise<Scrape> {
  return await until(async () => {
    const shown = await scrape(adminUrl);
    return shown.value('oncegate_in_flight') === 0 ? shown : undefined;
  });
}
