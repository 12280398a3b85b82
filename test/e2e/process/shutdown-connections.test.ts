import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway, visit } from './gateways.ts';

const DELAY_MS = 100;

it.concurrent.each([1, 2])(
  'a connection made at the moment the listener closes is not left hanging until the process ends, %i workers',
  async (workers) => {
    const sandbox = await openSandbox();
    const shutdown = { delayMs: DELAY_MS, graceMs: 20_000 };
    const upstream = { responseTimeoutMs: 25_000 };
    const gateway = await startGateway(configFor(sandbox, { workers, shutdown, upstream }));
    const key = randomUUID();
    const held = withdraw(gateway.url, { key, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(key) === 1);
    const ended = gateway.end();
    const visits: ReturnType<typeof visit>[] = [];
    let refused = 0;
    while (refused === 0) {
      const visiting = visit(gateway.port);
      visits.push(visiting);
      void visiting.then(({ how }) => {
        if (how === 'ECONNREFUSED') refused++;
      });
      await sleep(1);
    }
    // All of them end while the process still waits for the payout.
    const made = await Promise.all(visits);
    expect(sandbox.ledger.payouts({ key })).toBe(0);
    sandbox.endDelays(key);
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
