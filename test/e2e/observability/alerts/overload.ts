import { randomUUID } from 'node:crypto';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TestContext } from 'vitest';
import { send, withdraw } from '../../../support/client.ts';
import { rawConnection } from '../../../support/raw.ts';
import { openStack } from '../../../support/stack.ts';
import { until } from '../../../support/until.ts';
import { scrape } from '../support/scrape.ts';
import { keepOn, type Watch, WITHIN_MS } from './watch.ts';

const ALPHA = { Authorization: 'Bearer sk_sandbox_alpha' };
const HELD = 2;

/** One connection to a backend that takes its time, and more payouts than go through it. */
export async function slotsAreFull(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const stack = await openStack({
    upstream: { maxConnections: 1, maxQueued: 2, queueTimeoutMs: 300 },
  });
  onTestFinished(() => stack.close());
  await watch.add(stack);
  const stop = keepOn(100, () => withdraw(stack.url, { key: randomUUID(), fault: 'delay=400' }));
  const stopUnprotected = keepOn(1000, () => withdraw(stack.url));
  const alerts = [
    ...['OncegateOverloaded', 'OncegateSlotsFull', 'OncegateUnprotectedPayouts'],
    ...['OncegateLatencyBurnsFast', 'OncegateLatencyBurnsSlowly'],
    ...['OncegateAvailabilityBurnsFast', 'OncegateAvailabilityBurnsSlowly'],
  ];
  await watch.fire(...alerts);
  await Promise.all([stop(), stopUnprotected()]);
  await watch.clear(...alerts);
}

/** More requests at once, and then more connections, than the gateway takes. */
export async function tooManyAtOnce(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const stack = await openStack({
    limits: { inFlight: HELD, connections: 8, headerTimeoutMs: 300_000, bodyTimeoutMs: 300_000 },
  });
  onTestFinished(() => stack.close());
  await watch.add(stack);
  const head = [
    ...['POST /v1/index.php HTTP/1.1', 'Host: a', `Authorization: ${ALPHA.Authorization}`],
    ...['Content-Type: application/json', 'Content-Length: 100', '', ''],
  ].join('\r\n');
  const held = await Promise.all(Array.from({ length: HELD }, () => rawConnection(stack.port)));
  for (const socket of held) socket.write(head);
  await until(async () => (await scrape(stack.adminUrl)).value('oncegate_in_flight') === HELD, WITHIN_MS);
  const stop = keepOn(100, () => send(stack.url, { path: '/v2/get_balance', headers: ALPHA }));
  await watch.fire('OncegateInFlightFull');
  for (const socket of held) socket.destroy();
  await watch.clear('OncegateInFlightFull');
  await stop();

  const idle = await Promise.all(Array.from({ length: 8 }, () => rawConnection(stack.port)));
  const stopConnecting = keepOn(100, async () => {
    const socket = connect(stack.port, '127.0.0.1').on('error', () => {});
    await sleep(300);
    socket.destroy();
  });
  await watch.fire('OncegateConnectionsRefused');
  await stopConnecting();
  for (const socket of idle) socket.destroy();
  await watch.clear('OncegateConnectionsRefused');
}
