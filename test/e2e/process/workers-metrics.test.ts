import { readFileSync, statfsSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { beforeAll, describe, expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import { freePort } from '../../support/free-port.ts';
import { metric } from '../../support/metrics.ts';
import { endNow } from '../../support/process-life.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';
import { configFor, countersOf, openSandbox, pidsOf, startGateway, workersOf } from './gateways.ts';

const WORKERS = 3;
const SLOTS = 50;

describe('three workers', () => {
  let gateway: SpawnedGateway;
  let storePath: string;
  beforeAll(async () => {
    // With port 0, the system would choose another port after all workers have died.
    const listen = { host: '127.0.0.1', port: await freePort() };
    const match = { method: 'POST' as const, path: '/v1/refunds' };
    const config = configFor(await openSandbox(), {
      ...{ workers: WORKERS, listen, upstream: { maxConnections: SLOTS } },
      operations: [
        { name: 'balance', match: { method: 'GET', path: '/v2/get_balance' } },
        // This policy is warned about.
        { name: 'refund', match, idempotency: { inDoubt: 'retry' } },
      ],
    });
    storePath = (config.store as { path: string }).path;
    gateway = await startGateway(config);
  });

  let answered = 0;
  const balance = async (more: Record<string, string> = {}) => {
    const headers = { Authorization: 'Bearer sk_sandbox_alpha', ...more };
    const answer = await send(gateway.url, { path: '/v2/get_balance', headers });
    answered++;
    return answer;
  };
  const balances = (count: number) => Promise.all(Array.from({ length: count }, () => balance()));
  const counted = () => metric(gateway.adminUrl, 'oncegate_requests_total', { operation: 'balance' });
  /** Waits until all workers answer and have counted what was answered. Returns the number of balances. */
  const settled = async () => {
    await until(async () => (await counted()) === answered);
    await until(async () => (await ready()).status === 200);
    return answered;
  };
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
    // The kernel distributes connections, and a worker without CPU time may get none of a burst.
    await until(async () => {
      const answers = await balances(40);
      expect(answers.map(({ status }) => status)).toEqual(Array(40).fill(200));
      return pidsOf(gateway).length === WORKERS;
    });
    expect(pidsOf(gateway)).not.toContain(gateway.pid);
    await settled();
    expect(await metric(gateway.adminUrl, 'oncegate_secret_keys')).toBe(8);
    await until(async () => isDeepStrictEqual(await ready(), { status: 200, workers: '3 of 3 answer' }));
  });

  it('show what they all know once, and add up what each has', async () => {
    const shown = async (name: string, labels = {}) => await metric(gateway.adminUrl, name, labels);
    expect(await shown('oncegate_build_info')).toBe(1);
    expect(await shown('oncegate_config_info', { workers: `${WORKERS}`, store: 'sqlite' })).toBe(1);
    // A worker without CPU time for a second counts as one that does not answer.
    await until(async () => (await shown('oncegate_upstream_slots')) === WORKERS * SLOTS);
    expect(await shown('oncegate_config_warnings', { about: 'operations' })).toBe(1);
    expect(await shown('oncegate_config_warnings', { about: 'configuration' })).toBe(0);
    const { bavail, bsize } = statfsSync(storePath);
    const free = (await shown('oncegate_store_disk_free_bytes')) / (bavail * bsize);
    expect(Math.abs(free - 1)).toBeLessThan(0.2);
    const { size } = statSync(join(storePath, 'records.db-wal'));
    await until(async () => (await shown('oncegate_sqlite_wal_bytes')) === size);
  });

  it('are shown as OpenMetrics to those who prefer it', async () => {
    const traceId = '4bf92f3577b34da6a3ce929d0e0e4736';
    await balance({ traceparent: `00-${traceId}-00f067aa0ba902b7-01` });
    const headers = { Accept: 'application/openmetrics-text; version=1.0.0' };
    await until(async () =>
      (await send(gateway.adminUrl, { path: '/metrics', headers })).body.includes(`trace_id="${traceId}"`),
    );
    const { body } = await send(gateway.adminUrl, { path: '/metrics', headers });
    expect(body.toString()).toMatch(
      /\noncegate_requests_total\{operation="balance",outcome="forwarded"\} [1-9]/,
    );
    expect(body.toString().endsWith('\n# EOF\n')).toBe(true);
  });

  it('warn once of a file that differs from the configuration in force', async () => {
    const warned = () => metric(gateway.adminUrl, 'oncegate_config_warnings', { about: 'configuration' });
    const text = readFileSync(gateway.file, 'utf8');
    writeFileSync(gateway.file, text.replace(/workers: 3/, 'workers: 2'));
    await until(async () => (await warned()) === 1);
    writeFileSync(gateway.file, text);
    await until(async () => (await warned()) === 0);
  });

  it('keep all counts when one of them is killed, and replace it', async () => {
    const [killed = 0, ...others] = await workersOf(gateway, WORKERS);
    const before = await countersOf(gateway);
    const slots = () => metric(gateway.adminUrl, 'oncegate_upstream_slots');
    endNow(killed);
    await until(async () => {
      const [health, living] = await Promise.all([ready(), slots()]);
      // Gauges are those of the workers that live.
      return health.status === 503 && living < WORKERS * SLOTS;
    });
    expect(await fallen(before)).toEqual([]);
    expect(await metric(gateway.adminUrl, 'oncegate_config_info')).toBe(1);
    await until(async () => (await ready()).status === 200);
    expect(await fallen(before)).toEqual([]);
    await until(async () => (await slots()) === WORKERS * SLOTS);
    const now = await workersOf(gateway, WORKERS);
    expect(now).toEqual(expect.arrayContaining(others));
    expect(now).not.toContain(killed);
    await settled();
    await balances(9);
    await settled();
    expect(await fallen(before)).toEqual([]);
  });

  it('keep all counts when all of them are killed at the same time', async () => {
    const workers = await workersOf(gateway, WORKERS);
    const [sum, before] = [await settled(), await countersOf(gateway)];
    for (const pid of workers) endNow(pid);
    await until(async () => (await ready()).workers !== '3 of 3 answer');
    await until(async () => (await ready()).workers === '3 of 3 answer');
    expect(await fallen(before)).toEqual([]);
    expect(await counted()).toBe(sum);
  });

  it('answer on the admin port while one of them is paused', async () => {
    const [frozen = 0] = await workersOf(gateway, WORKERS);
    const [sum, before] = [await settled(), await countersOf(gateway)];
    process.kill(frozen, 'SIGSTOP');
    const startedMs = performance.now();
    const [missing, sumNow, health] = await Promise.all([fallen(before), counted(), ready()]);
    expect(performance.now() - startedMs).toBeLessThan(5000);
    expect([missing, sumNow]).toEqual([[], sum]);
    expect(health).toEqual({ status: 503, workers: '2 of 3 answer' });
    process.kill(frozen, 'SIGCONT');
    await until(async () => (await ready()).status === 200);
    expect(await counted()).toBe(sum);
  });

  it('keep all counts when each of them ends on SIGTERM', async () => {
    await balances(30);
    const sum = await settled();
    for (const pid of await workersOf(gateway, WORKERS)) process.kill(pid, 'SIGTERM');
    await until(async () => (await ready()).workers !== '3 of 3 answer');
    await until(async () => (await ready()).workers === '3 of 3 answer');
    expect(await counted()).toBe(sum);
  });
});
