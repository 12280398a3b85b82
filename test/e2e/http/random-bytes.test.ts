import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, head, LAST_CHUNK, request, Wire } from '../../support/wire.ts';

const FOR_MS = 3000;
const AT_ONCE = 8;

/** Mulberry32: the same seed, the same bytes. */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const payout = JSON.stringify({
  action: 'withdraw',
  amount: 1,
  bank_code: '058',
  account_number: '0123456789',
});
const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: eA==',
];

/** Requests that are nearly right: none of them has the right to pay. */
const templates: Buffer[] = [
  request(
    'POST /v1/index.php',
    ['Authorization: Bearer sk_test_revoked', 'x-service-idempotency: random'],
    payout,
  ),
  request('POST /v1/index.php', ['x-service-idempotency: random', 'Expect: 100-continue'], payout),
  Buffer.from(head('POST /v3/echo', ALPHA, 'Transfer-Encoding: chunked') + chunk('hello') + LAST_CHUNK),
  Buffer.from(head('GET /v3/echo', ALPHA)),
  Buffer.from(head('GET /v3/ws', ALPHA, ...HANDSHAKE)),
  Buffer.from(head('GET /v3/ws', ...HANDSHAKE)),
];

function bytesFrom(random: () => number): Buffer {
  const below = (n: number) => Math.floor(random() * n);
  if (random() < 0.3) return Buffer.from(Array.from({ length: below(2000) }, () => below(256)));
  const template = Buffer.from(templates[below(templates.length)] as Buffer);
  for (let i = below(6); i > 0; i--) template[below(template.length)] = below(256);
  return random() < 0.3 ? template.subarray(0, below(template.length)) : template;
}

test(`random bytes for ${FOR_MS} ms: it serves as before, and nothing of them is left`, async () => {
  const seed = Date.now() & 0xffffffff;
  const random = randomFrom(seed);
  const stack = await openStack({ limits: { bodyTimeoutMs: 500 } });
  onTestFinished(() => stack.close());
  const endMs = performance.now() + FOR_MS;
  let connections = 0;
  const attack = async () => {
    while (performance.now() < endMs) {
      const socket = connect(stack.port, '127.0.0.1').on('error', () => {});
      socket.resume();
      connections++;
      const closed = once(socket, 'close');
      for (let i = 0; i < 3; i++) socket.write(bytesFrom(random));
      const way = random();
      if (way < 0.5) socket.end();
      else setTimeout(() => (way < 0.75 ? socket.destroy() : socket.resetAndDestroy()), 5);
      await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, 50))]);
      socket.destroy();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, attack));

  const wire = await Wire.open(stack.port);
  const fields = [ALPHA, 'x-service-idempotency: after-1'];
  expect(
    (await wire.write(request('POST /v1/index.php', fields, payout)).answer()).status,
    `seed ${seed}`,
  ).toBe(201);
  expect(stack.sandbox.ledger.payouts(), `seed ${seed}`).toBe(1);
  expect(connections).toBeGreaterThan(50);
  expect(stack.log.filter(({ level }) => Number(level) >= 50)).toEqual([]);
  await until(async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'), 5000).catch(
    () => {
      throw new Error(`requests stay open, seed ${seed}`);
    },
  );
});
