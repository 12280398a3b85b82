/**
 * The store was unavailable when a gateway got SIGTERM. After its grace period the gateway gave up results that it had
 * acknowledged to merchants but not stored, and their keys stayed in doubt.
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { createSandbox, type Sandbox } from '../../src/sandbox/sandbox.ts';
import { withdraw } from '../support/client.ts';
import { FAST_START } from '../support/command.ts';
import { temporaryFolder, testConfig } from '../support/config.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { type SpawnedGateway, spawnGateway } from '../support/spawn.ts';
import { onRedis } from '../support/stores.ts';
import { startProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';

/** How often the gateway has logged that it waits for the store; it does so every two seconds. */
const waited = ({ lines }: SpawnedGateway): number =>
  lines.filter((line) => line.includes('waiting for the store to take the last writes')).length;

let sandbox: Sandbox;
let redis: RedisServer;
let wire: TcpProxy;
beforeAll(async () => {
  [sandbox, redis] = await Promise.all([createSandbox({ port: 0 }), startRedis()]);
  wire = await startProxy(redis.port);
});
afterAll(() => sandbox?.close());
afterEach(() => away(false));

function away(on: boolean): void {
  wire.refuse(on);
  if (on) wire.cut();
}

const configOf = (more: object = {}) =>
  testConfig(temporaryFolder(), sandbox.url, {
    ...onRedis(wire, 500),
    lock: { leaseMs: 3000 },
    idempotency: { completeRetryMs: 100 },
    ...more,
  });

/** A result that was acknowledged to its merchant, but not stored. */
async function answerWithoutStore(gateway: SpawnedGateway) {
  const key = randomUUID();
  const answer = withdraw(gateway.url, { key, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(key) === 1);
  away(true);
  sandbox.endDelays(key);
  const answered = await answer;
  expect(answered.status).toBe(201);
  return { key, answered };
}

// Four log lines take longer than a worker gets before it is killed, not counting completeMs.
it.each([
  { workers: 1, times: 1 },
  { workers: 2, times: 4 },
])('the gateway keeps running until its results are stored, $workers workers', async ({ workers, times }) => {
  const config = configOf({ workers, shutdown: { delayMs: 0, graceMs: 50 } });
  const gateway = await spawnGateway(config, FAST_START);
  const { key, answered } = await answerWithoutStore(gateway);
  const exited = once(gateway.child, 'exit');
  gateway.child.kill('SIGTERM');
  await until(() => waited(gateway) === times);
  away(false);
  expect(await exited).toEqual([0, null]);

  const next = await spawnGateway(config, FAST_START);
  const again = await withdraw(next.url, { key });
  expect([again.status, again.headers['idempotent-replayed'], again.body]).toEqual([
    201,
    'true',
    answered.body,
  ]);
  expect(sandbox.ledger.payouts({ key })).toBe(1);
  expect(await next.end()).toBe(0);
});

it('after shutdown.completeMs the gateway exits without the write, logs that, and the key is in doubt', async () => {
  const config = configOf({ shutdown: { delayMs: 0, graceMs: 50, completeMs: 1000 } });
  const gateway = await spawnGateway(config, FAST_START);
  const { key } = await answerWithoutStore(gateway);
  const closed = once(gateway.child, 'close');
  expect(await gateway.end()).toBe(0);
  await closed;
  expect(
    gateway.lines.filter((line) => line.includes('the response was sent and never stored')),
  ).toHaveLength(1);
  away(false);
  const next = await spawnGateway(config, FAST_START);
  const again = await until(async () => {
    const answer = await withdraw(next.url, { key });
    return answer.status === 503 ? undefined : answer;
  });
  expect(again.json()).toMatchObject({ error: { code: 'outcome_unknown' } });
  expect(sandbox.ledger.payouts({ key })).toBe(1);
  expect(await next.end()).toBe(0);
});

it('a second signal ends the gateway at once', async () => {
  const gateway = await spawnGateway(configOf({ shutdown: { delayMs: 0, graceMs: 50 } }), FAST_START);
  await answerWithoutStore(gateway);
  const exited = once(gateway.child, 'exit');
  gateway.child.kill('SIGTERM');
  await until(() => waited(gateway) === 1);
  gateway.child.kill('SIGTERM');
  expect(await exited).toEqual([1, null]);
});
