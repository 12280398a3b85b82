import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { Agent } from 'node:http';
import { describe, expect, it } from 'vitest';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import { type ConfigInput, keyFileIn } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { expectProblem } from '../../support/problem.ts';
import { endNow, isAlive, killAfterTests } from '../../support/process-life.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';
import { childrenOf, configFor, isReplay, openSandbox, startGateway, visit, workersOf } from './gateways.ts';

const WORKERS = 2;
/** Clients that connect, send one request, and connect again. */
const LANES = 20;

interface Execution {
  key: string;
  /** The worker that executes it. */
  pid: number;
  answer: Promise<TestAnswer | Error>;
}

/** A withdraw that the backend holds until the test ends its delay, and the worker that sent it. */
async function executing(gateway: SpawnedGateway, sandbox: Sandbox): Promise<Execution> {
  const [key, requestId] = [randomUUID(), randomUUID()];
  // Both requests use one connection, so the same worker handles them.
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const headers = { Authorization: 'Bearer sk_sandbox_alpha', 'X-Request-Id': requestId };
  await send(gateway.url, { path: '/v2/get_balance', headers, agent });
  const line = await until(() => gateway.lines.find((text) => text.includes(requestId)));
  const answer = withdraw(gateway.url, { key, fault: 'delay=60000', agent }).catch((error: Error) => error);
  await until(() => sandbox.requests.ofKey(key) === 1);
  return { key, pid: killAfterTests(JSON.parse(line).pid), answer: answer.finally(() => agent.destroy()) };
}

/** A new backend and a configuration for it. */
async function open(): Promise<{ sandbox: Sandbox; config: ConfigInput }> {
  const sandbox = await openSandbox();
  // With port 0, the system would choose another port after all workers have died.
  const listen = { host: '127.0.0.1', port: await freePort() };
  return { sandbox, config: configFor(sandbox, { workers: WORKERS, listen, lock: { leaseMs: 2500 } }) };
}

describe.concurrent('two workers', () => {
  it('leave in doubt what one of them executed when it was killed, and never send it again', async () => {
    const { sandbox, config } = await open();
    const gateway = await startGateway(config);
    const { key, pid, answer } = await executing(gateway, sandbox);
    endNow(pid);
    expect(await answer).toBeInstanceOf(Error);
    expectProblem(await withdraw(gateway.url, { key }), { status: 409, code: 'outcome_unknown' });
    expect(sandbox.ledger.payouts({ key })).toBe(0);
    sandbox.endDelays(key);
    await until(() => sandbox.ledger.payouts({ key }) === 1);
    const pids = await workersOf(gateway, WORKERS);
    expect(pids).not.toContain(pid);
    for (const _ of pids) {
      expectProblem(await withdraw(gateway.url, { key }), { status: 409, code: 'outcome_unknown' });
    }
    expect([sandbox.requests.ofKey(key), sandbox.ledger.payouts({ key })]).toEqual([1, 1]);
    expect(await gateway.end()).toBe(0);
    expect(pids.filter(isAlive)).toEqual([]);
  });

  it('complete what they execute and exit when their primary is killed', async () => {
    const { sandbox, config } = await open();
    const upstream = { ...config.upstream, url: sandbox.url, responseTimeoutMs: 30_000 };
    const shutdown = { delayMs: 8000, graceMs: 30_000 };
    const gateway = await startGateway({ ...config, upstream, shutdown });
    const pids = await workersOf(gateway, WORKERS);
    const { key, pid, answer } = await executing(gateway, sandbox);
    expect(await gateway.end('SIGKILL')).toBe('SIGKILL');
    await until(async () => (await visit(gateway.port)).how === 'ECONNREFUSED');
    // The workers have released their port.
    const successor = await startGateway({ ...config, workers: 1 });
    expect(isAlive(pid)).toBe(true);
    // While the old worker still executes, the new gateway sends nothing for the same key.
    const early = await withdraw(successor.url, { key, headers: { Prefer: 'wait=0' } });
    expectProblem(early, { status: 409, code: 'request_in_flight', retryAfter: 1 });
    sandbox.endDelays(key);
    expect(await answer).toMatchObject({ status: 201 });
    await until(() => !pids.some(isAlive));
    const again = await withdraw(successor.url, { key });
    expect([again.status, isReplay(again)]).toEqual([201, true]);
    expect([sandbox.requests.ofKey(key), sandbox.ledger.payouts({ key })]).toEqual([1, 1]);
    expect(await successor.end()).toBe(0);
  });

  it.each([
    ['SIGTERM', 1],
    ['SIGKILL', 1],
    ['SIGTERM', WORKERS],
  ] as const)('leave no connection without an end while %s ends %i of them', async (signal, count) => {
    const { config } = await open();
    const gateway = await startGateway({ ...config, shutdown: { delayMs: 0, graceMs: 1000 } });
    const ended = (await workersOf(gateway, WORKERS)).slice(0, count);
    const made: Awaited<ReturnType<typeof visit>>[] = [];
    const lanes = Array.from({ length: LANES }, async () => {
      while (ended.some(isAlive)) made.push(await visit(gateway.port));
    });
    await until(() => made.length > 10 * LANES);
    for (const pid of ended) process.kill(pid, signal);
    await Promise.all(lanes);
    const results = new Set(made.map(({ how }) => how));
    // Connections of a worker that ended, or that no worker had accepted.
    for (const how of ['ECONNRESET', 'EPIPE', 'ECONNREFUSED', 'no answer']) results.delete(how);
    expect([...results]).toEqual(['an answer']);
    await until(async () => (await send(gateway.url).catch(() => undefined))?.status === 401);
    expect(await gateway.end()).toBe(0);
  });

  it('shut down gracefully also if SIGTERM arrives while they start', async () => {
    const { config } = await open();
    const gateway = await startGateway({ ...config, shutdown: { delayMs: 0, graceMs: 20_000 } });
    const dead = await workersOf(gateway, WORKERS);
    for (const pid of dead) endNow(pid);
    await until(() => !dead.some(isAlive));
    await until(() => childrenOf(gateway.pid).length === WORKERS);
    const signalledAtMs = performance.now();
    expect(await gateway.end()).toBe(0);
    // A worker that missed the message would be killed, some seconds after graceMs.
    expect(performance.now() - signalledAtMs).toBeLessThan(15_000);
  });

  it('log why the replacement of a dead worker cannot start', async () => {
    const { config } = await open();
    const gateway = await startGateway(config);
    const path = keyFileIn(config);
    const [pid = 0] = await workersOf(gateway, WORKERS);
    const before = gateway.lines.length;
    writeFileSync(path, 'merchants: none\n');
    endNow(pid);
    const isLogged = () => gateway.lines.slice(before).some((line) => /key file .+ is refused/.test(line));
    await until(isLogged);
    expect((await send(gateway.url)).status).toBe(401);
    expect(await gateway.end()).toBe(0);
  });
});
