/** Each test measures a gateway under load: they run one after the other. */
import { readdirSync, readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { send } from '../../support/client.ts';
import { configFor } from '../../support/config.ts';
import { isLong, printFigures, seconds } from '../../support/duration.ts';
import { metric } from '../../support/metrics.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, request } from '../../support/wire.ts';
import { Flood, median } from './flood.ts';
import { startInspected } from './heap.ts';

const CLIENTS = 24;
const ROOM = 16;
const BACKEND_MS = 200;
const PHASE_MS = 600;
/** One good round of several is enough: noise slows down some rounds, but a real effect shows in every round. */
const ROUNDS = 3;

test('requests over limits.inFlight are refused at once, and do not slow down the accepted ones', async () => {
  const sandbox = await openSandbox();
  const gateway = await spawnGateway(configFor(sandbox, { limits: { inFlight: ROOM } }));
  const slow = {
    path: '/v2/get_balance',
    headers: { Authorization: 'Bearer sk_sandbox_alpha', 'X-Sandbox-Fault': `delay=${BACKEND_MS}` },
  };
  /** Sends requests up to limits.inFlight; returns the latencies of the accepted ones. */
  const fill = async (): Promise<number[]> => {
    const inside: number[] = [];
    const endMs = performance.now() + PHASE_MS;
    const merchant = async () => {
      while (performance.now() < endMs) {
        const startedMs = performance.now();
        const { status } = await send(gateway.url, slow);
        if (status === 200) inside.push(performance.now() - startedMs);
        else await sleep(5);
      }
    };
    await Promise.all(Array.from({ length: ROOM }, merchant));
    return inside;
  };
  // Without credentials, so that a request that is accepted for a moment is refused next.
  const next = () => Buffer.from(head('GET /v3/echo'));
  const round = async () => {
    const alone = await fill();
    const reached = sandbox.requests.total();
    const filling = fill();
    await sleep(BACKEND_MS / 4);
    const flood = new Flood(gateway.port, { connections: CLIENTS, next });
    const flooded = await filling;
    const { statuses, latenciesMs } = await flood.stop();
    expect(sandbox.requests.total() - reached).toBe(flooded.length);
    expect(Object.keys(statuses).filter((status) => !['401', '503'].includes(status))).toEqual([]);
    expect(statuses[503]).toBeGreaterThan(ROOM);
    return {
      slower: median(flooded) / median(alone),
      refusedMs: median(latenciesMs),
      refused: statuses[503] ?? 0,
    };
  };
  await fill();
  const rounds: Awaited<ReturnType<typeof round>>[] = [];
  const isGood = () => rounds.some(({ slower, refusedMs }) => slower < 2 && refusedMs < BACKEND_MS / 4);
  while (rounds.length < ROUNDS && !isGood()) rounds.push(await round());
  printFigures('flood over limits.inFlight', rounds);
  expect(isGood(), JSON.stringify(rounds)).toBe(true);
});

/** Sends as many wrong keys as right ones, a thousand a second. Without a fixed rate, refused clients would send more. */
const EVERY_MS = 24;
const ROUND_MS = 400;

const wrong = [
  'sk_sandbox_alph',
  'sk_test_revoked',
  'sk_test_expired',
  'sk_test_future',
  'sk_test_unknown',
  'x'.repeat(512),
  '',
].map((secret) => Buffer.from(head('GET /v2/get_balance', `Authorization: Bearer ${secret}`)));
const right = Buffer.from(head('GET /v2/get_balance', ALPHA));

test('a flood of wrong keys delays valid requests no more than a flood of right keys', async () => {
  const sandbox = await openSandbox();
  const gateway = await spawnGateway(configFor(sandbox));
  let accepted = 0;
  /** Latencies of one merchant, while all other clients send these requests. */
  const amid = async (next: () => Buffer, status: number) => {
    const flood = new Flood(gateway.port, { connections: CLIENTS, everyMs: EVERY_MS, next });
    const merchant = new Flood(gateway.port, { connections: 1, next: () => right });
    await sleep(ROUND_MS);
    await Promise.all([merchant.stop(), flood.stop()]);
    expect(merchant.statuses).toEqual({ 200: merchant.answered });
    accepted += merchant.answered + (flood.statuses[200] ?? 0);
    expect(flood.statuses).toEqual({ [status]: flood.answered });
    return { latenciesMs: merchant.latenciesMs, answered: flood.answered };
  };
  let turn = 0;
  const kinds = {
    right: () => amid(() => right, 200),
    wrong: () => amid(() => wrong[turn++ % wrong.length] ?? right, 401),
  };
  await kinds.right();
  await kinds.wrong();
  const rounds: { slower: number; refused: number }[] = [];
  const isGood = () => rounds.some(({ slower, refused }) => slower < 1.5 && refused > 50);
  while (rounds.length < ROUNDS && !isGood()) {
    const among = { right: await kinds.right(), wrong: await kinds.wrong() };
    const slower = median(among.wrong.latenciesMs) / median(among.right.latenciesMs);
    rounds.push({ slower, refused: among.wrong.answered });
  }
  printFigures('wrong keys', rounds);
  expect(isGood(), JSON.stringify(rounds)).toBe(true);
  // None of the refused requests was sent to the backend.
  expect(sandbox.requests.total()).toBe(accepted);
});

const LIMIT_MS = 1500;
/** Each connection needs one descriptor here and one in the gateway, which has the same limit. */
const CONNECTIONS = Math.min(2000, openFiles() - 1000);
const BYTES_A_CONNECTION = 400;

function openFiles(): number {
  return Number(/^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1]);
}

const descriptorsOf = (pid: number) => readdirSync(`/proc/${pid}/fd`).length;

/** The bytes that are sent first, and those that are sent repeatedly. The rest of the request is never sent. */
const ways: { first: string; again: string }[] = [
  { first: '', again: '' },
  { first: 'POST /v1/index.php HTTP/1.1\r\nHost: gateway.test\r\n', again: '' },
  { first: head('GET /v3/echo').slice(0, -2), again: 'X: y\r\n' },
  { first: 'G', again: '' },
  { first: `${head('POST /v1/index.php', ALPHA, 'Content-Length: 1000')}{`, again: ' ' },
  {
    first: `${head('POST /v1/index.php', ALPHA, 'Transfer-Encoding: chunked')}1\r\n{\r\n`,
    again: '1\r\n \r\n',
  },
  { first: `${head('POST /v3/echo', 'Content-Length: 1000')}{`, again: ' ' },
];

/** One such connection; resolves when the gateway has closed it. */
function hold(port: number, { first, again }: (typeof ways)[number], sockets: Set<Socket>): Promise<void> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => first && socket.write(first)).on('error', () => {});
    sockets.add(socket.resume());
    const drip = again && setInterval(() => socket.write(again), 250);
    socket.once('close', () => {
      clearInterval(drip || undefined);
      sockets.delete(socket);
      resolve();
    });
  });
}

test(`${CONNECTIONS} slow connections do not block other requests, are closed in time, and leak nothing`, async () => {
  const sandbox = await openSandbox();
  const gateway = await startInspected(sandbox, {
    limits: { headerTimeoutMs: LIMIT_MS, bodyTimeoutMs: LIMIT_MS },
    upstream: { keepAliveMs: 200 },
  });
  const sockets = new Set<Socket>();
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
  });
  const balance = { path: '/v2/get_balance', headers: { Authorization: 'Bearer sk_sandbox_alpha' } };
  const ask = async () => {
    const startedMs = performance.now();
    expect((await send(gateway.url, balance)).status).toBe(200);
    return performance.now() - startedMs;
  };
  const asked = async (goesOn: () => boolean) => {
    const latencies: number[] = [];
    while (goesOn() || latencies.length < 20) latencies.push(await ask());
    return latencies;
  };
  const wave = async () => {
    const startedMs = performance.now();
    const closed: Promise<void>[] = [];
    while (closed.length < CONNECTIONS) {
      for (let i = 0; i < 200; i++)
        closed.push(hold(gateway.port, ways[i % ways.length] ?? expect.fail(), sockets));
      await sleep(5);
    }
    await until(() => descriptorsOf(gateway.pid) > CONNECTIONS / 2);
    const during = await asked(() => sockets.size > CONNECTIONS / 2);
    await Promise.all(closed);
    await until(() => descriptorsOf(gateway.pid) <= descriptors);
    return { during, tookMs: performance.now() - startedMs, liveBytes: await gateway.liveBytes() };
  };
  const alone = await asked(() => false);
  await gateway.liveBytes();
  await sleep(500);
  const descriptors = descriptorsOf(gateway.pid);
  const first = await wave();
  const second = await wave();

  const grown = second.liveBytes - first.liveBytes;
  const during = [...first.during, ...second.during];
  const seen = {
    alone: median(alone),
    during: median(during),
    worst: Math.max(...during),
    grown,
    tookMs: second.tookMs,
  };
  printFigures('slow connections', seen);
  expect(seen.during, JSON.stringify(seen)).toBeLessThan(5 * seen.alone + 50);
  expect(seen.worst, JSON.stringify(seen)).toBeLessThan(LIMIT_MS);
  for (const { tookMs } of [first, second]) expect(tookMs).toBeLessThan(6 * LIMIT_MS);
  expect(grown).toBeLessThan(BYTES_A_CONNECTION * CONNECTIONS);
  expect(sandbox.ledger.payouts()).toBe(0);
});

const WARM_KEYS = 1500;
/** With ONCEGATE_ABUSE_SECONDS, as many keys as possible in that time. */
const KEYS = 2500;
const WITHIN_MS = seconds(10) * 1000;
/** A gateway that kept a record id for each key would need more. This much is noise of the compiler and of growing tables. */
const BYTES_A_KEY = 64;
const NOISE_BYTES = 512 * 1024;

const payout = '{"action":"withdraw","amount":1,"bank_code":"058","account_number":"0123456789"}';

test.each(storeKinds)(
  'different keys leave nothing behind but their records: %s',
  async (kind) => {
    const sandbox = await openSandbox();
    const gateway = await startInspected(sandbox, await storeSections(kind));
    let keys = 0;
    const next = () =>
      request('POST /v1/index.php', [ALPHA, `x-service-idempotency: many-${++keys}`], payout);
    const part = async (atLeast: number) => {
      const flood = new Flood(gateway.port, { connections: 16, ahead: 4, next });
      const endMs = performance.now() + WITHIN_MS;
      while (flood.answered < atLeast && performance.now() < endMs) await sleep(20);
      const { statuses, answered } = await flood.stop();
      expect(statuses).toEqual({ 201: answered });
      await until(async () => (await metric(gateway.adminUrl, 'oncegate_pending_writes')) === 0);
      return { answered, liveBytes: await gateway.liveBytes() };
    };
    const startedMs = performance.now();
    const first = await part(WARM_KEYS);
    const last = await part(isLong ? Number.POSITIVE_INFINITY : KEYS);
    const grown = last.liveBytes - first.liveBytes;
    const rate = Math.round((1000 * keys) / (performance.now() - startedMs));
    printFigures(`different keys, ${kind}`, { keys, rate, grown });
    expect([sandbox.requests.total(), sandbox.ledger.payouts()]).toEqual([keys, keys]);
    expect(grown, `${last.answered} keys`).toBeLessThan(last.answered * BYTES_A_KEY + NOISE_BYTES);
  },
  30_000 + 2 * WITHIN_MS,
);
