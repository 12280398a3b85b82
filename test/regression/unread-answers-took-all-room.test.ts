import { expect, test } from 'vitest';
import { stackForTest } from '../support/stack.ts';
import { until } from '../support/until.ts';
import { ALPHA, head, Wire } from '../support/wire.ts';

// Clients without credentials who sent requests and did not read the answers could occupy all of limits.inFlight without end.
test('a client that does not read its answers is disconnected, and other requests are accepted again', async () => {
  const stack = await stackForTest({ limits: { inFlight: 10, answerTimeoutMs: 400 } });
  const status = async () => {
    const wire = await Wire.open(stack.port);
    return (await wire.write(head('GET /v2/get_balance', ALPHA)).answer()).status;
  };
  const idler = await Wire.open(stack.port);
  idler.socket.pause();
  idler.write(head('GET /v3/echo').repeat(12_000));
  await until(async () => (await status()) === 503);
  await until(async () => (await status()) === 200);
  await until(async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'));
});

test('a pipelined answer that waits behind a slow one does not count as unread', async () => {
  const stack = await stackForTest({ limits: { answerTimeoutMs: 100 } });
  const wire = await Wire.open(stack.port);
  wire.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: delay=700') + head('GET //'));
  expect((await wire.answer()).status).toBe(200);
  expect((await wire.answer()).status).toBe(400);
});
