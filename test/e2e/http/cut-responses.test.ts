/** A response that is cut off must not look complete to a client of HTTP/1.0, such as nginx by default. */
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import { connect, type Socket } from 'node:net';
import { describe, expect, it } from 'vitest';
import { backendForFile } from '../../support/backend.ts';
import { stackForTest, type TestGateway } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA } from '../../support/wire.ts';

const LIMIT = 65_536;
/** More than all buffers on the way hold. */
const LARGE = 32_000_000;
let answering: ServerResponse | undefined;
const url = await backendForFile(
  createServer((req, res) => {
    req.resume();
    answering = res;
    // More than is stored, in chunks.
    if (req.url === '/v3/large') res.end(Buffer.alloc(LARGE));
    else res.write('x'.repeat(2 * LIMIT));
  }),
);

const config = { upstream: { url }, idempotency: { maxStoredBytes: LIMIT } };

/** Sends a request. `ended` resolves to how its connection ends. */
function ask({ port }: TestGateway, line: string, fields: string[]) {
  const socket: Socket = connect(port, '127.0.0.1');
  const ended = new Promise<string>((resolve) => {
    socket.once('end', () => resolve('in good order'));
    socket.once('error', ({ code = '' }: NodeJS.ErrnoException) => resolve(code));
  });
  socket.write([`${line} HTTP/1.0`, ALPHA, 'Content-Length: 0', ...fields, '', ''].join('\r\n'));
  return { socket, ended };
}

/** Begins to read a response, and resolves to how its connection ends. */
async function endOf(
  stack: TestGateway,
  line: string,
  fields: string[],
  cut: () => unknown,
): Promise<string> {
  const { socket, ended } = ask(stack, line, fields);
  let bytes = 0;
  socket.on('data', (chunk) => {
    bytes += chunk.length;
  });
  await once(socket, 'data');
  await until(() => bytes > 2 * LIMIT);
  await cut();
  return await ended;
}

describe.each([
  ['streamed', 'GET /v3/report', []],
  ['executed', 'GET /v2/get_balance', []],
  ['executed under a key', 'POST /v3/pay', ['x-service-idempotency: order-1']],
])('a response in HTTP/1.0 to a request that is %s ends with a reset if', (_way, line, fields) => {
  it.each<[string, (stack: TestGateway) => unknown]>([
    ['the backend breaks it off', () => answering?.socket?.resetAndDestroy()],
    ['the gateway is closed', ({ gateway }) => gateway.shutdownNow()],
  ])('%s', async (_what, cut) => {
    const stack = await stackForTest(config);
    expect(await endOf(stack, line, fields, () => cut(stack))).toBe('ECONNRESET');
  });
});

it.each([
  ['streamed', 'GET', []],
  ['executed under a key', 'POST', ['x-service-idempotency: order-2']],
])('and if the client does not read it in time, of one that is %s', async (_way, method, fields) => {
  const stack = await stackForTest({ ...config, limits: { answerTimeoutMs: 200 } });
  answering = undefined;
  const { socket, ended } = ask(stack, `${method} /v3/large`, fields);
  await until(() => answering?.destroyed);
  socket.resume();
  expect(await ended).toBe('ECONNRESET');
});

it('and in good order if it is complete', async () => {
  const stack = await stackForTest(config);
  expect(await endOf(stack, 'GET /v3/report', [], () => answering?.end())).toBe('in good order');
});
