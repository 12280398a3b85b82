import type { ServerResponse } from 'node:http';
import { expect, onTestFinished, test } from 'vitest';
import { httpBackend } from '../support/backend.ts';
import { openStack, stackForTest } from '../support/stack.ts';
import { until } from '../support/until.ts';
import { ALPHA, codeOf, HANDSHAKE, head, request, Wire } from '../support/wire.ts';

const WEB_SOCKET = head('GET /v3/ws', ALPHA, ...HANDSHAKE);
/** Node reads a connection in pieces of this size, and handles finished responses between two of them. */
const READ_BYTES = 65_536;

test('a handshake behind a dropped request is dropped too, after the response that closes the connection', async () => {
  const stack = await stackForTest();
  const wire = await Wire.open(stack.port);
  const fields = [ALPHA, 'Expect: the unsupported'];
  const spare = READ_BYTES - request('POST /v3/echo', fields, Buffer.alloc(60_000)).length;
  const first = request('POST /v3/echo', fields, Buffer.alloc(60_000 + spare));
  expect(first.length).toBe(READ_BYTES);
  wire.write(Buffer.concat([first, Buffer.from(head('GET /v3/echo', ALPHA) + WEB_SOCKET)]));
  expect((await wire.answer()).status).toBe(417);
  await wire.ended;
  expect(wire.rest).toBe('');
  expect(stack.sandbox.requests.total()).toBe(0);
});

test('a request behind a response that began before the shutdown is answered', async () => {
  const { promise: begun, resolve: begin } = Promise.withResolvers<ServerResponse>();
  const url = await httpBackend((_req, res) => {
    res.write('begun');
    begin(res);
  });
  const behind = await openStack({ upstream: { url }, shutdown: { delayMs: 0, graceMs: 5000 } });
  onTestFinished(() => behind.sandbox.close());
  const wire = await Wire.open(behind.port);
  wire.write(head('GET /v3/echo', ALPHA));
  await wire.hears('begun');
  const shutdown = behind.shutdown();
  await until(async () =>
    (await behind.gateway.readiness.checks()).some(({ name, ok }) => name === 'draining' && !ok),
  );
  wire.write(head('GET /v3/echo', ALPHA) + WEB_SOCKET);
  (await begun).end();
  expect((await wire.answer()).status).toBe(200);
  const answer = await wire.answer();
  expect([answer.status, codeOf(answer), answer.headers.connection]).toEqual([
    503,
    'shutting_down',
    ['close'],
  ]);
  await wire.ended;
  expect(wire.rest).toBe('');
  await shutdown;
});
