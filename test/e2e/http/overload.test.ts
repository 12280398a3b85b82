import { beforeEach, expect, test } from 'vitest';
import { metric } from '../../support/metrics.ts';
import { connectionsOf, nothingOpen, stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, HANDSHAKE, head, payoutOf, Wire } from '../../support/wire.ts';

const BALANCE = head('GET /v2/get_balance', ALPHA);

const stack = await stackForFile({ limits: { connections: 3, inFlight: 100 } });
// The gateway has noticed that those of the test before are closed.
beforeEach(() => until(async () => (await connectionsOf(stack.gateway.server)) === 0));

test('limits.connections refuses one connection more, keeps the others, and accepts a new one when one has closed', async () => {
  const idle = await Wire.open(stack.port);
  expect((await idle.write(BALANCE).answer()).status).toBe(200);
  const streaming = await Wire.open(stack.port);
  streaming.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: delay=300'));
  const upgraded = await Wire.open(stack.port);
  expect((await upgraded.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer()).status).toBe(101);

  for (let i = 0; i < 5; i++) {
    const refused = await Wire.open(stack.port);
    refused.write(BALANCE);
    await refused.ended;
    // It closes without an answer.
    expect(refused.rest).toBe('');
  }
  expect(await metric(stack.adminUrl, 'oncegate_connections_refused_total')).toBe(5);
  expect((await streaming.answer()).status).toBe(200);
  expect((await idle.write(BALANCE).answer()).status).toBe(200);
  // A ping with the mask 0 and no data.
  upgraded.write(Buffer.from([0x89, 0x80, 0, 0, 0, 0]));
  await upgraded.hears('\x8a\x00');

  upgraded.socket.destroy();
  await until(async () => {
    const wire = (await Wire.open(stack.port)).write(BALANCE);
    return await wire.answer().then(
      ({ status }) => status === 200,
      () => false,
    );
  });
});

test('pipelined requests that wait no longer count when their merchants leave', async () => {
  const wire = await Wire.open(stack.port);
  const before = stack.sandbox.requests.total();
  wire.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: delay=600000'));
  wire.write(head('GET /v3/echo', ALPHA) + BALANCE + head('GET /v3/echo'));
  wire.write(payoutOf('ahead-1'));
  await until(() => stack.sandbox.requests.total() === before + 4);
  wire.socket.destroy();
  await nothingOpen(stack);
  expect(stack.sandbox.ledger.payouts({ key: 'ahead-1' })).toBe(1);
});
