import { randomUUID } from 'node:crypto';
import { afterAll, describe, expect, it } from 'vitest';
import { Desk } from '../../../src/idempotency/doubt/desk.ts';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { openStore } from '../../../src/idempotency/stores/open-store.ts';
import { systemClock } from '../../../src/kernel/clock.ts';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { parsedConfig, testConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const LEASE_MS = 2000;

const closing: (() => Promise<unknown>)[] = [];
afterAll(() => Promise.all(closing.map((close) => close())));

describe.concurrent.each(storeKinds)('on %s', (kind) => {
  it('the late complete of a paused owner whose key an operator completed is refused, and counted as stale', async () => {
    const sandbox = await createSandbox({ port: 0 });
    closing.push(() => sandbox.close());
    const more = { ...(await storeSections(kind)), lock: { leaseMs: LEASE_MS } };
    const input = testConfig(newFolder(), sandbox.url, more);
    const gateway = await spawnGateway(input, FAST_START, newFolder());
    closing.push(() => gateway.end('SIGKILL'));
    const store = await openStore(parsedConfig(input), systemClock);
    closing.push(() => store.close());
    const desk = new Desk(store, { leaseMs: LEASE_MS, maxStoredBytes: 1024, clock: systemClock });

    const key = randomUUID();
    const first = withdraw(gateway.url, { key, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(key) === 1);
    process.kill(gateway.pid, 'SIGSTOP');
    const scope = scopeOf('M-ALPHA', key);
    await until(async () => {
      const listed = await desk.answer({ kind: 'list', inDoubt: true, limit: 10 });
      return listed.kind === 'found' && (listed.value as { records: object[] }).records.length === 1;
    });
    const body = Buffer.from('{"by":"hand"}');
    const resolution = { as: 'completed' as const, by: 'ada', reason: 'in the books', status: 201 };
    const resolved = await desk.answer({
      kind: 'resolve',
      scope,
      ...resolution,
      body: body.toString('base64'),
    });
    expect(resolved).toMatchObject({ kind: 'found', value: { from: { state: 'executing' } } });

    sandbox.endDelays(key);
    process.kill(gateway.pid, 'SIGCONT');
    // The first request also gets the stored response and not its own.
    const late = await first;
    expect([late.status, late.body, late.headers['idempotent-replayed']]).toEqual([201, body, 'true']);
    const stale = () => metric(gateway.adminUrl, 'oncegate_stale_total', { write: 'complete' });
    await until(async () => (await stale()) === 1);
    const retry = await withdraw(gateway.url, { key });
    expect([retry.status, retry.body]).toEqual([201, body]);
    expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });
});
