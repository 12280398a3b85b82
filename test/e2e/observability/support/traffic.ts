import { once } from 'node:events';
import type { Socket } from 'node:net';
import { WebSocket } from 'ws';
import { BEARER, send, withdraw } from '../../../support/client.ts';
import type { ConfigInput } from '../../../support/config.ts';
import { idle, metric } from '../../../support/metrics.ts';
import { rawConnection, rawExchange } from '../../../support/raw.ts';
import type { Stack } from '../../../support/stack.ts';
import { until } from '../../../support/until.ts';

const MAX_IN_FLIGHT = 3;
const MAX_STORED_BYTES = 1024;
const MAX_BODY_BYTES = 4096;

const UNFINISHED_HEAD = [
  'POST /v1/index.php HTTP/1.1',
  'Host: gateway.test',
  `Authorization: ${BEARER.Authorization}`,
  'Content-Length: 10',
  '\r\n',
].join('\r\n');

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
      // The duplicates that wait do so until a test ends the delay of their key.
      idempotency: { key: 'optional', waitMs: 600_000 },
    },
    { name: 'refund', match: { method: 'POST', path: '/v1/refunds' }, idempotency: { key: 'required' } },
  ],
};

type Busy = Pick<Stack, 'url' | 'port' | 'adminUrl' | 'sandbox'>;

/**
 * Requests that end in most of the ways, each way once if it can be. The configuration has to have `sections`. Their numbers are
 * in metrics.test.ts. All their keys begin with `order-`.
 */
export async function busyTraffic(stack: Busy): Promise<void> {
  await answersOfTheBackend(stack);
  await conflicts(stack);
  await refusals(stack);
  await moreThanItTakes(stack);
}

async function answersOfTheBackend({ url, port }: Busy): Promise<void> {
  await withdraw(url, { key: 'order-executed' });
  await withdraw(url, { key: 'order-executed', secret: 'sk_sandbox_alpha_2' });
  await withdraw(url, { key: 'order-released', fault: 'status=429' });
  await withdraw(url, { secret: 'sk_sandbox_bravo' });
  await send(url, { path: '/v2/get_balance', headers: BEARER });
  await send(url, { path: '/v3/echo', headers: BEARER });
  const socket = new WebSocket(`ws://127.0.0.1:${port}/v3/ws`, { headers: BEARER });
  await once(socket, 'open');
  socket.terminate();
}

async function conflicts({ url, adminUrl, sandbox }: Busy): Promise<void> {
  await withdraw(url, { key: 'order-broken-off', fault: 'execute-then-reset' });
  await withdraw(url, { key: 'order-gave-up', secret: 'sk_sandbox_bravo', fault: 'status=504' });
  await withdraw(url, { key: 'order-broken-off' });
  await withdraw(url, { key: 'order-huge', fault: `huge=${2 * MAX_STORED_BYTES}` });
  await withdraw(url, { key: 'order-huge', fault: `huge=${2 * MAX_STORED_BYTES}` });
  await withdraw(url, { key: 'order-executed', amount: 11 });
  const first = withdraw(url, { key: 'order-slow', fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey('order-slow') > 0);
  await withdraw(url, { key: 'order-slow', fault: 'delay=60000', headers: { Prefer: 'wait=0' } });
  sandbox.endDelays('order-slow');
  await first;
  await idle(adminUrl);
}

async function refusals({ url, port, adminUrl }: Busy): Promise<void> {
  await send(url);
  await withdraw(url, { secret: 'sk_unknown' });
  await withdraw(url, { secret: 'sk_test_balance_only' });
  for (const key of ['order-patient', 'order-impatient'])
    await withdraw(url, { key, secret: 'sk_sandbox_charlie' });
  await withdraw(url, { key: '' });
  await send(url, { path: '/v1//index.php', headers: BEARER });
  await send(url, { path: '/v1/index.php', method: 'POST', headers: BEARER, body: '{"action":1}' });
  await send(url, { path: '/v1/refunds', method: 'POST', headers: BEARER, body: '{}' });
  await send(url, {
    path: '/v1/refunds',
    method: 'POST',
    headers: { ...BEARER, 'x-service-idempotency': 'order-large' },
    body: 'x'.repeat(MAX_BODY_BYTES + 1),
  });
  await rawExchange(port, 'GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n');
  const leaving = await unfinished(port);
  await until(async () => (await metric(adminUrl, 'oncegate_in_flight')) === 1);
  leaving.destroy();
  await idle(adminUrl);
}

async function moreThanItTakes({ url, port, adminUrl }: Busy): Promise<void> {
  const held = await Promise.all(Array.from({ length: MAX_IN_FLIGHT }, () => unfinished(port)));
  await until(async () => (await metric(adminUrl, 'oncegate_in_flight')) === MAX_IN_FLIGHT);
  await withdraw(url, { key: 'order-too-many' });
  for (const socket of held) socket.destroy();
  await idle(adminUrl);
}

/** A request of an operation whose body never arrives. */
async function unfinished(port: number): Promise<Socket> {
  const socket = await rawConnection(port);
  socket.write(UNFINISHED_HEAD);
  return socket;
}
