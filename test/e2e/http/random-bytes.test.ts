import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, test } from 'vitest';
import { Random } from '../../faults/chaos/random.ts';
import { printFigures, seconds } from '../../support/duration.ts';
import { payoutBody } from '../../support/payout.ts';
import { stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, HANDSHAKE, head, LAST_CHUNK, payoutOf, request, Wire } from '../../support/wire.ts';

/** ONCEGATE_ABUSE_SECONDS makes it longer, ONCEGATE_ABUSE_SEED repeats a run as far as the order of events allows. */
const FOR_MS = seconds(2) * 1000;
const SEED = Number(process.env.ONCEGATE_ABUSE_SEED ?? Date.now() & 0xffffffff);
const AT_ONCE = 8;

const payout = JSON.stringify(payoutBody(1));

/** Requests that are almost valid. None of them may cause a payout. */
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

const flip = (bytes: Buffer, at: number, mask: number) => bytes.writeUInt8(bytes.readUInt8(at) ^ mask, at);

function bytesFrom(random: Random): Buffer {
  const below = (n: number) => random.between(0, n - 1);
  const noise = (most: number) => Buffer.from(Array.from({ length: below(most) }, () => below(256)));
  const template = () => Buffer.from(templates[below(templates.length)] as Buffer);
  const cut = (bytes: Buffer) => bytes.subarray(0, below(bytes.length + 1));
  const way = random.next();
  if (way < 0.2) return noise(2000);
  const bytes = template();
  // Replaces bytes, or single bits.
  if (way < 0.5) for (let i = below(6); i > 0; i--) bytes[below(bytes.length)] = below(256);
  else if (way < 0.65) for (let i = below(6); i > 0; i--) flip(bytes, below(bytes.length), 1 << below(8));
  // The first part of one with the last part of another; inserted bytes; truncated.
  else if (way < 0.8) return Buffer.concat([cut(bytes), template().subarray(below(200))]);
  else if (way < 0.9) {
    const head = cut(bytes);
    return Buffer.concat([head, noise(20), bytes.subarray(head.length)]);
  }
  return random.chance(0.3) ? cut(bytes) : bytes;
}

test(
  `random bytes for ${FOR_MS} ms (seed ${SEED}): it serves as before, and nothing of them is left`,
  async () => {
    const random = new Random(SEED);
    const stack = await stackForTest({ limits: { bodyTimeoutMs: 500 } });
    const endMs = performance.now() + FOR_MS;
    let [connections, sent] = [0, 0];
    const attack = async () => {
      while (performance.now() < endMs) {
        const socket = connect(stack.port, '127.0.0.1').on('error', () => {});
        socket.resume();
        connections++;
        const closed = once(socket, 'close');
        for (let i = 0; i < 3; i++) {
          const bytes = bytesFrom(random);
          sent += bytes.length;
          socket.write(bytes);
        }
        const way = random.next();
        if (way < 0.5) socket.end();
        else setTimeout(() => (way < 0.75 ? socket.destroy() : socket.resetAndDestroy()), 5);
        await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, 50))]);
        socket.destroy();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, attack));

    const wire = await Wire.open(stack.port);
    expect((await wire.write(payoutOf('after-1')).answer()).status, `seed ${SEED}`).toBe(201);
    expect(stack.sandbox.ledger.payouts(), `seed ${SEED}`).toBe(1);
    expect(connections).toBeGreaterThan(50);
    printFigures('random bytes', { seed: SEED, connections, sent });
    expect(stack.log.filter(({ level }) => Number(level) >= 50)).toEqual([]);
    await until(
      async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'),
      5000,
    ).catch(() => {
      throw new Error(`requests stay open, seed ${SEED}`);
    });
  },
  FOR_MS + 20_000,
);
