import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway, visit } from './gateways.ts';

const DELAY_MS = 100;
const HELD_MS = 3000;

it.concurrent.each([1, 2])(
  'a connection made at the moment the listener closes is not left hanging until the process ends, %i workers',
  async (workers) => {
    const sandbox = await openSandbox();
    const shutdown = { delayMs: DELAY_MS, graceMs: 10_000 };
    const gateway = await startGateway(configFor(sandbox, { workers, shutdown }));
    const key = randomUUID();
    const held = withdraw(gateway.url, { key, fault: `delay=${HELD_MS}` });
    await until(() => sandbox.requests.ofKey(key) === 1);
    const signalledAtMs = performance.now();
    const ended = gateway.end();
    const visits: ReturnType<typeof visit>[] = [];
    while (performance.now() < signalledAtMs + DELAY_MS + 400) {
      visits.push(visit(gateway.port));
      await sleep(1);
    }
    const made = await Promise.all(visits);
    expect(made.filter(({ elapsedMs }) => elapsedMs > HELD_MS - 1000)).toEqual([]);
    const seen = new Set(made.map(({ how }) => how));
    expect(
      [...seen].filter((how) => !['an answer', 'ECONNREFUSED', 'ECONNRESET', 'EPIPE'].includes(how)),
    ).toEqual([]);
    expect(seen).toContain('an answer');
    expect(seen).toContain('ECONNREFUSED');
    expect((await held).status).toBe(201);
    expect(await ended).toBe(0);
  },
);
