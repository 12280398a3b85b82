import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, onTestFinished } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { openFloodingBackend } from '../../support/flooding-backend.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { type Stack, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, request, Wire } from '../../support/wire.ts';
import { beginToRead } from './reading.ts';

const tombstone = { status: 409, code: 'response_not_stored' } as const;
const BRAVO = 'sk_sandbox_bravo';

/** A gateway in front of a backend with endless answers. */
async function open(maxConnections: number, limits: MoreConfig['limits'] = {}) {
  const backend = await openFloodingBackend();
  onTestFinished(backend.close);
  const stack = await stackForTest({
    upstream: { url: backend.url, maxConnections },
    idempotency: { maxStoredBytes: 65_536 },
    limits,
  });
  return { backend, stack };
}

/** A merchant who requests an endless answer and does not read it. */
async function stallWith({ url }: Stack, key?: string): Promise<IncomingMessage> {
  const reading = await beginToRead(url, { fault: 'endless', ...(key && { key }) });
  onTestFinished(() => void reading.destroy());
  return reading;
}

const inUse = ({ adminUrl }: Stack) => metric(adminUrl, 'oncegate_upstream_slots_in_use');

describe('merchants who do not read their oversize responses', () => {
  it('leave half of the slots to others', async () => {
    const { backend, stack } = await open(4);
    // The gateway may cut some of them before their head.
    const opening = await Promise.allSettled([1, 2, 3, 4].map(() => stallWith(stack, randomUUID())));
    expect(opening.some(({ status }) => status === 'fulfilled')).toBe(true);
    await until(() => backend.streams === 2);
    expect(await inUse(stack)).toBe(2);
    const others = Array.from({ length: 20 }, () => [
      withdraw(stack.url, { key: randomUUID(), secret: BRAVO }),
      send(stack.url, { path: '/v2/get_balance', headers: { Authorization: `Bearer ${BRAVO}` } }),
    ]);
    for (const answer of await Promise.all(others.flat())) expect(answer.body.toString()).toBe('short');
    expect(backend.streams).toBe(2);
    expect(backend.connections.most).toBeLessThanOrEqual(4);
  });

  it.each([
    ['with a key', randomUUID()],
    ['without a key', undefined],
  ])('are disconnected, and the backend’s connection is free: %s', async (_, key) => {
    const { backend, stack } = await open(1, { answerTimeoutMs: 300 });
    const reading = await stallWith(stack, key);
    await until(() => backend.streams === 0);
    await until(async () => (await inUse(stack)) === 0);
    await expect(reading.toArray()).rejects.toThrow('aborted');
    if (key !== undefined) expectProblem(await withdraw(stack.url, { key }), tombstone);
  });

  it('are disconnected as well if the response is pipelined behind another one', async () => {
    const { backend, stack } = await open(2, { answerTimeoutMs: 300 });
    const wire = await Wire.open(stack.port);
    const endless = [ALPHA, 'X-Sandbox-Fault: endless'];
    wire.write(head('GET /v3/endless', ALPHA));
    wire.write(request('POST /v1/index.php', endless, '{"action":"withdraw"}'));
    await until(() => backend.streams === 2);
    await wire.ended;
    await until(() => backend.streams === 0);
    expect(await inUse(stack)).toBe(0);
  });
});

it('a merchant who reads an oversize response slowly keeps it', async () => {
  const answerTimeoutMs = 700;
  const { backend, stack } = await open(1, { answerTimeoutMs });
  const reading = await stallWith(stack);
  let bytes = 0;
  reading.on('data', (piece: Buffer) => {
    bytes += piece.length;
    if (bytes % 3_000_000 < piece.length) {
      reading.pause();
      setTimeout(() => reading.resume(), 100);
    }
  });
  const ended = once(reading, 'close');
  await Promise.race([ended, sleep(3 * answerTimeoutMs)]);
  expect(backend.streams).toBe(1);
  // The backend never paused, so there was always something to read.
  expect(backend.bytes - bytes).toBeGreaterThan(500_000);
});
