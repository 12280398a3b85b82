import { readdirSync, readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { openSandbox } from '../../e2e/process/gateways.ts';
import { send } from '../../support/client.ts';
import { printFigures } from '../../support/duration.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head } from '../../support/wire.ts';
import { median } from './flood.ts';
import { startInspected } from './heap.ts';

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
