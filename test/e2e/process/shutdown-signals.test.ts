import { randomUUID } from 'node:crypto';
import { Agent } from 'node:http';
import { describe, expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import { isAlive } from '../../support/process-life.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';
import { configFor, isReplay, openSandbox, startGateway, visit, workersOf } from './gateways.ts';

const sandbox = await openSandbox();

async function open(more: MoreConfig = {}) {
  const config = configFor(sandbox, {
    lock: { leaseMs: 2000 },
    upstream: { responseTimeoutMs: 25_000 },
    ...more,
  });
  return { config, gateway: await startGateway(config) };
}

/** The shutdown has begun: the gateway says that it is not ready. */
const isShuttingDown = ({ adminUrl }: SpawnedGateway) =>
  until(async () => (await send(adminUrl, { path: '/readyz' })).status === 503);

/** A withdraw that the backend holds until the test ends its delay. */
async function executing(url: string, options: { agent?: Agent; signal?: AbortSignal } = {}) {
  const key = randomUUID();
  const answer = withdraw(url, { key, fault: 'delay=60000', ...options }).catch((error: Error) => error);
  await until(() => sandbox.requests.ofKey(key) === 1);
  return { key, answer };
}

describe.concurrent('SIGTERM', () => {
  it.each(['SIGTERM', 'SIGINT'] as const)('as %s lets what runs end, and is its answer', async (signal) => {
    const { gateway } = await open();
    const { key, answer } = await executing(gateway.url);
    const ended = gateway.end(signal);
    await isShuttingDown(gateway);
    sandbox.endDelays(key);
    expect(await ended).toBe(0);
    expect(await answer).toMatchObject({ status: 201 });
    const line = await until(() => gateway.lines.find((one) => one.includes('"shutting down"')));
    expect(JSON.parse(line)).toMatchObject({ level: 'info', signal });
  });

  it('completes an execution whose merchant has disconnected', async () => {
    const { config, gateway } = await open();
    const merchant = new AbortController();
    const { key, answer } = await executing(gateway.url, { signal: merchant.signal });
    merchant.abort();
    expect(await answer).toBeInstanceOf(Error);
    const ended = gateway.end();
    await isShuttingDown(gateway);
    sandbox.endDelays(key);
    expect(await ended).toBe(0);
    expect(sandbox.ledger.payouts({ key })).toBe(1);

    const heir = await startGateway(config);
    const again = await withdraw(heir.url, { key });
    expect([again.status, isReplay(again)]).toEqual([201, true]);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(await heir.end()).toBe(0);
  });

  it.each([0, 300])(
    'is not delayed by a client that keeps its connection open, after %i ms',
    async (delayMs) => {
      const { gateway } = await open({ shutdown: { delayMs, graceMs: 20_000 } });
      const agent = new Agent({ keepAlive: true });
      const { key, answer } = await executing(gateway.url, { agent });
      const ended = gateway.end();
      await until(async () => (await visit(gateway.port)).how === 'ECONNREFUSED');
      const answeredAtMs = performance.now();
      sandbox.endDelays(key);
      expect(await ended).toBe(0);
      expect(performance.now() - answeredAtMs).toBeLessThan(10_000);
      // No gateway would answer its next request on this connection.
      expect(await answer).toMatchObject({ status: 201, headers: { connection: 'close' } });
      agent.destroy();
    },
  );

  it('leaves keys in doubt whose executions do not finish within graceMs', async () => {
    const { config, gateway } = await open({ shutdown: { delayMs: 0, graceMs: 300 } });
    let errors = '';
    gateway.child.stderr?.on('data', (chunk) => {
      errors += chunk;
    });
    const cut = await Promise.all(Array.from({ length: 12 }, () => executing(gateway.url)));
    const signalledAtMs = performance.now();
    expect(await gateway.end()).toBe(0);
    // The backend would have answered much later.
    expect(performance.now() - signalledAtMs).toBeLessThan(10_000);
    expect(errors).toBe('');
    for (const { answer } of cut) expect(await answer).toBeInstanceOf(Error);
    for (const { key } of cut) sandbox.endDelays(key);

    const heir = await startGateway(config);
    const retry = async ({ key }: { key: string }) =>
      expectProblem(await withdraw(heir.url, { key }), { status: 409, code: 'outcome_unknown' });
    await Promise.all(cut.map(retry));
    await until(() => cut.every(({ key }) => sandbox.ledger.payouts({ key }) === 1));
    await Promise.all(cut.map(retry));
    for (const { key } of cut) expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(await heir.end()).toBe(0);
  });

  it.each([1, 2])('twice exits at once, %i workers', async (workers) => {
    const { gateway } = await open({ workers, shutdown: { delayMs: 0, graceMs: 20_000 } });
    const pids = workers > 1 ? await workersOf(gateway, workers) : [];
    const { key, answer } = await executing(gateway.url);
    const ended = gateway.end();
    await isShuttingDown(gateway);
    const signalledAtMs = performance.now();
    process.kill(gateway.pid, 'SIGTERM');
    expect(await ended).not.toBe(0);
    await until(() => !pids.some(isAlive));
    expect(performance.now() - signalledAtMs).toBeLessThan(3000);
    expect(await answer).toBeInstanceOf(Error);
    expect(sandbox.ledger.payouts({ key })).toBe(0);
  });
});
