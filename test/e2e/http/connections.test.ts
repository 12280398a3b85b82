import { describe, expect, onTestFinished, test } from 'vitest';
import { metric } from '../../support/metrics.ts';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, Wire } from '../../support/wire.ts';
import { configFor, openSandbox, startGateway } from '../process/gateways.ts';

const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
];

const REFUSED = 'oncegate_connections_refused_total';

/** A refused connection closes without an answer. */
async function expectRefused(port: number): Promise<void> {
  const wire = await Wire.open(port);
  wire.write(head('GET /v2/get_balance', ALPHA));
  await wire.ended;
  expect(wire.rest).toBe('');
}

describe('limits.connections', () => {
  test('refuses one connection more, keeps the others, and accepts a new one when one has closed', async () => {
    const stack = await openStack({ limits: { connections: 3 } });
    onTestFinished(() => stack.close());
    const idle = await Wire.open(stack.port);
    expect((await idle.write(head('GET /v2/get_balance', ALPHA)).answer()).status).toBe(200);
    const streaming = await Wire.open(stack.port);
    streaming.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: delay=300'));
    const upgraded = await Wire.open(stack.port);
    expect((await upgraded.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer()).status).toBe(101);

    for (let i = 0; i < 5; i++) await expectRefused(stack.port);
    expect(await metric(stack.adminUrl, REFUSED)).toBe(5);
    expect((await streaming.answer()).status).toBe(200);
    expect((await idle.write(head('GET /v2/get_balance', ALPHA)).answer()).status).toBe(200);
    // A ping with the mask 0 and no data.
    upgraded.write(Buffer.from([0x89, 0x80, 0, 0, 0, 0]));
    await upgraded.hears('\x8a\x00');

    upgraded.socket.destroy();
    await until(async () => {
      const wire = await Wire.open(stack.port);
      wire.write(head('GET /v2/get_balance', ALPHA));
      return await wire.answer().then(
        ({ status }) => status === 200,
        () => false,
      );
    });
  });

  test('applies to each of several workers: a connection that none of them accepts is closed', async () => {
    const sandbox = await openSandbox();
    const gateway = await startGateway(configFor(sandbox, { workers: 2, limits: { connections: 1 } }));
    const balance = head('GET /v2/get_balance', ALPHA);
    const answered = async (wire: Wire) => {
      const answer = await wire
        .write(balance)
        .answer()
        .catch(() => undefined);
      return answer?.status === 200 ? wire : undefined;
    };
    // The next connection may be handed to a worker that is at its limit, which closes it.
    const hold = () => until(async () => answered(await Wire.open(gateway.port)));
    const held = [await hold(), await hold()];
    const before = await metric(gateway.adminUrl, REFUSED);
    for (let i = 0; i < 3; i++) await expectRefused(gateway.port);
    expect(await metric(gateway.adminUrl, REFUSED)).toBe(before + 3);
    for (const wire of held) expect(await answered(wire)).toBe(wire);
  });
});
