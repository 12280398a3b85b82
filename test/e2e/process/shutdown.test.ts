import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { Agent } from 'node:http';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { isReplay, send, type TestAnswer, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { configFile, configFor } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRedis } from '../../support/redis-server.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { gatewayForTest, openGateway, openSandbox } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
import { begin } from '../../support/tour.ts';
import { until } from '../../support/until.ts';
import { startTraffic } from './traffic.ts';

const sandbox = await openSandbox();

const PATIENCE_MS = 10_000;

/** How a new connection with one request on it ended: with an answer, or the code of its error. */
const visit = (port: number): Promise<string> =>
  send(`http://127.0.0.1:${port}`, { signal: AbortSignal.timeout(PATIENCE_MS) }).then(
    () => 'an answer',
    ({ code }: NodeJS.ErrnoException) => code ?? 'another error',
  );

/** A withdraw that the backend holds until the test ends its delay. */
async function executing(url: string, options: { agent?: Agent } = {}) {
  const key = randomUUID();
  const answer = withdraw(url, { key, fault: 'delay=60000', ...options }).catch((error: Error) => error);
  await until(() => sandbox.requests.ofKey(key) === 1);
  return { key, answer };
}

describe('a process', () => {
  const DELAY_MS = 1500;
  const MERCHANTS = 12;

  it('fails no request at SIGTERM under load, completes what runs, says that it drains, and ends with 0', async () => {
    const own = await openSandbox();
    const shutdown = { delayMs: DELAY_MS, graceMs: 5000 };
    const gateway = await spawnGateway(configFor(own, { shutdown }));
    const traffic = startTraffic(gateway.url, MERCHANTS);
    await until(() => traffic.sent.length > 10 * MERCHANTS);

    const signalledAtMs = performance.now();
    const ended = gateway.end();
    const draining = await until(async () => {
      const answer = await send(gateway.adminUrl, { path: '/readyz' });
      return answer.status === 503 ? answer : undefined;
    });
    expect(draining.json<{ checks: object[] }>().checks).toContainEqual(
      expect.objectContaining({ name: 'draining', ok: false, detail: 'shutting down' }),
    );
    expect(performance.now() - signalledAtMs).toBeLessThan(DELAY_MS);
    expect(await ended).toBe(0);
    expect(performance.now() - signalledAtMs).toBeLessThan(DELAY_MS + 3000);
    await traffic.stop();
    const line = gateway.lines.find((one) => one.includes('"shutting down"'));
    expect(JSON.parse(line ?? '{}')).toMatchObject({ level: 'info', signal: 'SIGTERM' });

    const { sent } = traffic;
    // A client may use a kept-alive connection until the delay has passed. After that, only new connections are tried, and they
    // are refused. A connection that the kernel had established but the gateway had not accepted is reset.
    const failed = sent.filter(({ error }) => error !== undefined);
    const tooEarly = failed.filter(({ reused, endedAtMs }) => reused || endedAtMs < signalledAtMs + DELAY_MS);
    expect(tooEarly).toEqual([]);
    expect(failed.filter(({ error }) => !/^ECONN(?:REFUSED|RESET)$/.test(error ?? ''))).toEqual([]);
    expect(failed.filter(({ key }) => own.requests.ofKey(key) > 0)).toEqual([]);
    expect(failed.length).toBeLessThanOrEqual(MERCHANTS);
    const after = sent.filter(({ endedAtMs }) => endedAtMs > signalledAtMs);
    expect(after.length).toBeGreaterThan(2 * MERCHANTS);
    const answers = sent.flatMap(({ answer }) => answer ?? []);
    const paid = answers.filter(({ status }) => status === 201);
    const refused = answers.filter(({ status }) => status !== 201);
    expect(refused.filter(({ body }) => !body.includes('"shutting_down"'))).toEqual([]);
    expect(own.ledger.payouts()).toBe(paid.length);
    expect(own.requests.total()).toBe(paid.length);
    expect(own.ledger.duplicateKeys()).toEqual([]);
  });

  it('answers or refuses every connection that is made at the moment the listener closes', async () => {
    const shutdown = { delayMs: 100, graceMs: 20_000 };
    const upstream = { responseTimeoutMs: 25_000 };
    const gateway = await spawnGateway(configFor(sandbox, { shutdown, upstream }));
    const { key, answer } = await executing(gateway.url);
    const ended = gateway.end('SIGINT');
    const visits: ReturnType<typeof visit>[] = [];
    let refused = 0;
    while (refused === 0) {
      const visiting = visit(gateway.port);
      visits.push(visiting);
      void visiting.then((how) => {
        if (how === 'ECONNREFUSED') refused++;
      });
      await sleep(1);
    }
    // All of them end while the process still waits for the payout.
    const seen = new Set(await Promise.all(visits));
    expect(sandbox.ledger.payouts({ key })).toBe(0);
    sandbox.endDelays(key);
    const ways = ['an answer', 'ECONNREFUSED', 'ECONNRESET', 'EPIPE'];
    expect([...seen].filter((how) => !ways.includes(how))).toEqual([]);
    expect([...seen]).toEqual(expect.arrayContaining(['an answer', 'ECONNREFUSED']));
    expect(await answer).toMatchObject({ status: 201 });
    expect(await ended).toBe(0);
  });

  it('exits at once at a second signal', async () => {
    const gateway = await spawnGateway(configFor(sandbox, { shutdown: { delayMs: 0, graceMs: 20_000 } }));
    const { key, answer } = await executing(gateway.url);
    const ended = gateway.end('SIGINT');
    await until(async () => (await send(gateway.adminUrl, { path: '/readyz' })).status === 503);
    process.kill(gateway.pid, 'SIGTERM');
    expect(await ended).toBe(1);
    expect(await answer).toBeInstanceOf(Error);
    expect(sandbox.ledger.payouts({ key })).toBe(0);
  });
});

/** Resolves at the first moment at which the port accepts a connection. */
async function firstConnection(port: number): Promise<void> {
  for (;;) {
    const socket = connect(port, '127.0.0.1');
    // An error rejects it.
    const accepted = await once(socket, 'connect').then(
      () => true,
      () => false,
    );
    socket.destroy();
    if (accepted) return;
  }
}

// It once served merchants before it had a listener for the signal, and would have cut what it executed.
it('a gateway that serves already, and has not ended its start, shuts down gracefully on SIGTERM', async () => {
  const port = await freePort();
  const config = configFor(sandbox, { listen: { host: '127.0.0.1', port }, shutdown: { delayMs: 0 } });
  const file = configFile(config);
  const gateway = begin(['serve', '--config', file]);
  await firstConnection(port);
  expect(await gateway.end('SIGTERM')).toEqual([0, null]);
});

describe('a shutdown', () => {
  async function open(more: MoreConfig = {}) {
    const config = configFor(sandbox, {
      lock: { leaseMs: 2000 },
      upstream: { responseTimeoutMs: 25_000 },
      ...more,
    });
    const heir = () => gatewayForTest(config);
    return { gateway: await openGateway(config), heir };
  }

  it('is not delayed by a client that keeps its connection open', async () => {
    const { gateway } = await open({ shutdown: { delayMs: 300, graceMs: 20_000 } });
    const agent = new Agent({ keepAlive: true });
    const { key, answer } = await executing(gateway.url, { agent });
    const ended = gateway.shutdown();
    await until(async () => (await visit(gateway.port)) === 'ECONNREFUSED');
    const answeredAtMs = performance.now();
    sandbox.endDelays(key);
    await ended;
    expect(performance.now() - answeredAtMs).toBeLessThan(10_000);
    // No gateway would answer its next request on this connection.
    expect(await answer).toMatchObject({ status: 201, headers: { connection: 'close' } });
    agent.destroy();
  });

  it('leaves keys in doubt whose executions do not finish within graceMs', async () => {
    const { gateway, heir } = await open({ shutdown: { delayMs: 0, graceMs: 300 } });
    const cut = await Promise.all(Array.from({ length: 12 }, () => executing(gateway.url)));
    const startedMs = performance.now();
    await gateway.shutdown();
    // The backend would have answered much later.
    expect(performance.now() - startedMs).toBeLessThan(10_000);
    for (const { answer } of cut) expect(await answer).toBeInstanceOf(Error);
    for (const { key } of cut) sandbox.endDelays(key);
    const { url } = await heir();
    const retry = async ({ key }: { key: string }) =>
      expectProblem(await withdraw(url, { key }), { status: 409, code: 'outcome_unknown' });
    await Promise.all(cut.map(retry));
    await until(() => cut.every(({ key }) => sandbox.ledger.payouts({ key }) === 1));
    await Promise.all(cut.map(retry));
    for (const { key } of cut) expect(sandbox.requests.ofKey(key)).toBe(1);
  });
});

// Once a gateway gave up results, after its grace period, that merchants had and the store had not.
it('a shutdown while the store is away waits until results are stored', async () => {
  const wire = await startProxy((await startRedis()).port);
  const config = configFor(sandbox, {
    ...onRedis(wire, 500),
    lock: { leaseMs: 3000 },
    idempotency: { completeRetryMs: 100 },
    shutdown: { delayMs: 0, graceMs: 50 },
  });
  const gateway = await openGateway(config);
  const { key, answer } = await executing(gateway.url);
  wire.refuse(true);
  wire.cut();
  sandbox.endDelays(key);
  const answered = (await answer) as TestAnswer;
  expect(answered.status).toBe(201);
  const ended = gateway.shutdown();
  await until(() =>
    gateway.log.some(({ msg }) => `${msg}`.includes('waiting for the store to take the last')),
  );
  wire.refuse(false);
  await ended;
  const next = await gatewayForTest(config);
  // Redis may have the connection of the store a moment later.
  const again = await until(async () => {
    const retry = await withdraw(next.url, { key });
    return retry.status === 503 ? undefined : retry;
  });
  expect([again.status, isReplay(again), again.body]).toEqual([201, true, answered.body]);
  expect(sandbox.ledger.payouts({ key })).toBe(1);
});
