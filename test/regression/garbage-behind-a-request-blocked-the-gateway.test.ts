import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import { setImmediate as immediate } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { stackForTest } from '../support/stack.ts';
import { until } from '../support/until.ts';
import { payoutOf, Wire } from '../support/wire.ts';

// Node reports malformed bytes for each packet. Each report added listeners, and calling thousands of them blocked the process for seconds.
it('malformed bytes behind a payout take nothing for each packet, and the payout is answered', async () => {
  const { port, gateway, sandbox } = await stackForTest({ upstream: { responseTimeoutMs: 30_000 } });
  const merchants: Socket[] = [];
  gateway.server.on('connection', (socket) => merchants.push(socket));
  let reports = 0;
  gateway.server.on('clientError', () => reports++);
  const wire = await Wire.open(port);
  const key = randomUUID();
  wire.write(payoutOf(key, 'X-Sandbox-Fault: delay=60000'));
  await until(() => sandbox.requests.ofKey(key) === 1);
  while (reports < 100) {
    wire.write('\x01');
    await immediate();
  }
  const added: string[] = [];
  const [merchant] = merchants;
  merchant?.on('newListener', (name) => added.push(String(name)));
  sandbox.endDelays(key);
  expect((await wire.answer()).status).toBe(201);
  await wire.ended;
  expect(added.filter((name) => name === 'close').length).toBeLessThan(10);
  expect(sandbox.ledger.payouts({ key })).toBe(1);
});
