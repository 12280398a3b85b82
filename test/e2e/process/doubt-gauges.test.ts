import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../support/client.ts';
import { newFolder, run } from '../../support/command.ts';
import type { ConfigInput } from '../../support/config.ts';
import { type Labels, metric } from '../../support/metrics.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway } from './gateways.ts';

const LEASE_MS = 1000;
const KEYS = 5;
const WITHIN_MS = 20_000;
/** The tests of a store run one after the other. The two stores run concurrently, because both wait for leases. */
const inTurn = { concurrent: false };

/** A dead gateway's keys, of which no merchant sends anything again. */
describe.concurrent.each(storeKinds)('keys that a killed gateway has left on %s', (kind) => {
  let sandbox: Sandbox;
  let config: ConfigInput;
  let other: SpawnedGateway;
  let heir: SpawnedGateway;
  const keys = Array.from({ length: KEYS }, () => randomUUID());
  beforeAll(async () => {
    sandbox = await openSandbox();
    config = configFor(sandbox, {
      ...(await storeSections(kind)),
      lock: { leaseMs: LEASE_MS },
      idempotency: { countDoubtsEveryMs: 300 },
    });
  });

  const gauge = ({ adminUrl }: SpawnedGateway, name: string, labels: Labels = {}) =>
    metric(adminUrl, `oncegate_${name}`, labels);
  const gauges = async (gateway: SpawnedGateway) => {
    const labels = { operation: 'withdraw' };
    return [await gauge(gateway, 'keys_in_doubt', labels), await gauge(gateway, 'keys_owner_gone', labels)];
  };
  const shows = (gateway: SpawnedGateway, inDoubt: number, ownerGone: number) =>
    until(async () => `${await gauges(gateway)}` === `${[inDoubt, ownerGone]}`, WITHIN_MS);

  it('are shown by another gateway and by a restarted one, with workers too, once each', inTurn, async () => {
    const doomed = await startGateway(config);
    other = await startGateway(config);
    // Of every operation there is a series from the start.
    const { body } = await send(other.adminUrl, { path: '/metrics' });
    for (const operation of ['withdraw', 'checkout', 'other', 'undeclared'])
      expect(body.toString()).toContain(`oncegate_keys_in_doubt{operation="${operation}"} 0`);
    const cut = keys.map((key) =>
      expect(withdraw(doomed.url, { key, fault: 'delay=5000' })).rejects.toThrow(/hang up|reset/i),
    );
    await until(() => keys.every((key) => sandbox.requests.ofKey(key) === 1));
    expect(await gauges(other)).toEqual([0, 0]);
    expect(await doomed.end('SIGKILL')).toBe('SIGKILL');
    await Promise.all(cut);
    await shows(other, KEYS, KEYS);
    heir = await startGateway({ ...config, workers: 2 });
    await shows(heir, KEYS, KEYS);
    for (const gateway of [other, heir]) {
      expect(await gauge(gateway, 'keys_in_doubt')).toBe(KEYS);
      expect(await gauge(gateway, 'oldest_in_doubt_seconds')).toBeGreaterThan(0.9);
      const countedMs = 1000 * (await gauge(gateway, 'doubts_counted_timestamp_seconds'));
      expect(Math.abs(Date.now() - countedMs)).toBeLessThan(10_000);
    }
    const before = await gauge(heir, 'oldest_in_doubt_seconds');
    expect(await until(() => gauge(heir, 'oldest_in_doubt_seconds'))).toBeGreaterThanOrEqual(before);
    for (const key of keys) expect(sandbox.requests.ofKey(key)).toBe(1);
  });

  it('are shown no more when the command line has resolved them, which is counted', inTurn, async () => {
    const file = join(newFolder(), 'gateway.yaml');
    writeFileSync(file, stringify(config));
    const [first, second, ...others] = keys as [string, string, ...string[]];
    const named = ['--config', file, '--merchant', 'M-ALPHA', '--reason', 'books', '--by', 'ada'];
    const resolved = await run(['records', 'resolve', ...named, '--key', first, '--as', 'completed']);
    expect([resolved.code, resolved.stderr]).toEqual([0, '']);
    const counts = (gateway: SpawnedGateway, as: string) =>
      gauge(gateway, 'resolutions_total', { as, by: 'command_line' });
    for (const gateway of [other, heir]) {
      await shows(gateway, KEYS - 1, KEYS - 1);
      await until(async () => (await counts(gateway, 'completed')) === 1);
    }
    // A retry marks a key in doubt, and it is the same one.
    expect((await withdraw(other.url, { key: second })).status).toBe(409);
    await shows(heir, KEYS - 1, KEYS - 2);
    const lines = [second, ...others].map((key) => ({ merchant: 'M-ALPHA', key, as: 'completed' }));
    const books = join(newFolder(), 'books.jsonl');
    writeFileSync(books, lines.map((line) => JSON.stringify(line)).join('\n'));
    const many = await run([
      'records',
      'resolve-many',
      '--config',
      file,
      '--from',
      books,
      '--reason',
      'books',
    ]);
    expect([many.code, many.stderr]).toEqual([0, '']);
    for (const gateway of [other, heir]) {
      await shows(gateway, 0, 0);
      await until(async () => (await counts(gateway, 'completed')) === KEYS);
      expect(await gauge(gateway, 'oldest_in_doubt_seconds')).toBe(0);
      expect(await gauge(gateway, 'resolutions_total')).toBe(KEYS);
    }
    for (const key of keys) expect(sandbox.requests.ofKey(key)).toBe(1);
  });
});
