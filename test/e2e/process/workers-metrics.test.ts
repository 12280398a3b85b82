import { beforeAll, describe, expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import { freePort } from '../../support/free-port.ts';
import { metric } from '../../support/metrics.ts';
import { endNow } from '../../support/process-life.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';
import { configFor, countersOf, openSandbox, pidsOf, startGateway, workersOf } from './gateways.ts';

const WORKERS = 3;

describe('three workers', () => {
  let gateway: SpawnedGateway;
  beforeAll(async () => {
    // With port 0, the system would choose another port after all workers have died.
    const listen = { host: '127.0.0.1', port: await freePort() };
    gateway = await startGateway(configFor(await openSandbox(), { workers: WORKERS, listen }));
  });

  const balance = () =>
    send(gateway.url, { path: '/v2/get_balance', headers: { Authorization: 'Bearer sk_sandbox_alpha' } });
  const balances = (count: number) => Promise.all(Array.from({ length: count }, balance));
  const counted = () => metric(gateway.adminUrl, 'oncegate_requests_total', { operation: 'balance' });
  const ready = async () => {
    const { status, json } = await send(gateway.adminUrl, { path: '/readyz' });
    const { checks } = json<{ checks: { name: string; ok: boolean; detail: string }[] }>();
    return { status, workers: checks.find(({ name }) => name === 'workers')?.detail };
  };
  /** The series whose values have fallen since `before`. */
  const fallen = async (before: Map<string, number>) => {
    const now = await countersOf(gateway);
    return [...before]
      .filter(([series, value]) => !((now.get(series) ?? 0) >= value))
      .map(([series]) => series);
  };

  it('serve one port, and their metrics are added up on one admin port', async () => {
    let sent = 0;
    // The kernel distributes connections, and a worker without CPU time may get none of a burst.
    await until(async () => {
      const answers = await balances(40);
      expect(answers.map(({ status }) => status)).toEqual(Array(40).fill(200));
      sent += answers.length;
      return pidsOf(gateway).length === WORKERS;
    });
    expect(pidsOf(gateway)).not.toContain(gateway.pid);
    await until(async () => (await counted()) === sent);
    expect(await metric(gateway.adminUrl, 'oncegate_secret_keys')).toBe(8);
    expect(await ready()).toEqual({ status: 200, workers: '3 of 3 answer' });
  });

  it('keep all counts when one of them is killed, and replace it', async () => {
    const [killed = 0, ...others] = await workersOf(gateway, WORKERS);
    const before = await countersOf(gateway);
    endNow(killed);
    await until(async () => (await ready()).status === 503);
    expect(await fallen(before)).toEqual([]);
    await until(async () => (await ready()).status === 200);
    expect(await fallen(before)).toEqual([]);
    const now = await workersOf(gateway, WORKERS);
    expect(now).toEqual(expect.arrayContaining(others));
    expect(now).not.toContain(killed);
    const sum = await counted();
    await balances(9);
    await until(async () => (await counted()) === sum + 9);
    expect(await fallen(before)).toEqual([]);
  });

  it('keep all counts when all of them are killed at the same time', async () => {
    const workers = await workersOf(gateway, WORKERS);
    const [before, sum] = [await countersOf(gateway), await counted()];
    for (const pid of workers) endNow(pid);
    await until(async () => (await ready()).workers !== '3 of 3 answer');
    await until(async () => (await ready()).workers === '3 of 3 answer');
    expect(await fallen(before)).toEqual([]);
    expect(await counted()).toBe(sum);
  });

  it('answer on the admin port while one of them is paused', async () => {
    const [frozen = 0] = await workersOf(gateway, WORKERS);
    const [before, sum] = [await countersOf(gateway), await counted()];
    process.kill(frozen, 'SIGSTOP');
    const startedMs = performance.now();
    const [missing, sumNow, health] = await Promise.all([fallen(before), counted(), ready()]);
    expect(performance.now() - startedMs).toBeLessThan(2500);
    expect([missing, sumNow]).toEqual([[], sum]);
    expect(health).toEqual({ status: 503, workers: '2 of 3 answer' });
    process.kill(frozen, 'SIGCONT');
    await until(async () => (await ready()).status === 200);
    expect(await counted()).toBe(sum);
  });

  it('keep all counts when each of them ends on SIGTERM', async () => {
    await balances(30);
    const sum = await counted();
    for (const pid of await workersOf(gateway, WORKERS)) process.kill(pid, 'SIGTERM');
    await until(async () => (await ready()).workers !== '3 of 3 answer');
    await until(async () => (await ready()).workers === '3 of 3 answer');
    expect(await counted()).toBe(sum);
  });
});
