import { randomUUID } from 'node:crypto';
import { Agent } from 'node:http';
import { describe, expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import { isAlive } from '../../support/process-life.ts';
import { until } from '../../support/until.ts';
import { configFor, isReplay, openSandbox, startGateway, workersOf } from './gateways.ts';

const sandbox = await openSandbox();

async function open(more: MoreConfig = {}) {
  const config = configFor(sandbox, { lock: { leaseMs: 600 }, ...more });
  return { config, gateway: await startGateway(config) };
}

/** A withdraw that takes the backend this long. */
async function executing(
  url: string,
  delayMs: number,
  options: { agent?: Agent; signal?: AbortSignal } = {},
) {
  const key = randomUUID();
  const answer = withdraw(url, { key, fault: `delay=${delayMs}`, ...options }).catch((error: Error) => error);
  await until(() => sandbox.requests.ofKey(key) === 1);
  return { key, answer };
}

describe.concurrent('SIGTERM', () => {
  it.each(['SIGTERM', 'SIGINT'] as const)('as %s lets what runs end, and is its answer', async (signal) => {
    const { gateway } = await open();
    const { answer } = await executing(gateway.url, 400);
    expect(await gateway.end(signal)).toBe(0);
    expect(await answer).toMatchObject({ status: 201 });
  });

  it('completes an execution whose merchant has disconnected', async () => {
    const { config, gateway } = await open();
    const merchant = new AbortController();
    const { key, answer } = await executing(gateway.url, 500, { signal: merchant.signal });
    merchant.abort();
    expect(await answer).toBeInstanceOf(Error);
    expect(await gateway.end()).toBe(0);
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
      const { gateway } = await open({ shutdown: { delayMs, graceMs: 8000 } });
      const agent = new Agent({ keepAlive: true });
      const { answer } = await executing(gateway.url, delayMs + 300, { agent });
      const signalledAtMs = performance.now();
      expect(await gateway.end()).toBe(0);
      expect(performance.now() - signalledAtMs).toBeLessThan(delayMs + 3000);
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
    const cut = await Promise.all(Array.from({ length: 12 }, () => executing(gateway.url, 2500)));
    const signalledAtMs = performance.now();
    expect(await gateway.end()).toBe(0);
    expect(performance.now() - signalledAtMs).toBeLessThan(2000);
    expect(errors).toBe('');
    for (const { answer } of cut) expect(await answer).toBeInstanceOf(Error);

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
    const { key, answer } = await executing(gateway.url, 6000);
    const ended = gateway.end();
    await until(async () => (await send(gateway.adminUrl, { path: '/readyz' })).status === 503);
    const signalledAtMs = performance.now();
    process.kill(gateway.pid, 'SIGTERM');
    expect(await ended).not.toBe(0);
    await until(() => !pids.some(isAlive));
    expect(performance.now() - signalledAtMs).toBeLessThan(3000);
    expect(await answer).toBeInstanceOf(Error);
    expect(sandbox.ledger.payouts({ key })).toBe(0);
  });
});
