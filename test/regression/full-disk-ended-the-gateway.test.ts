/**
 * A commit that LMDB could not write was rejected in promises that nobody listened to, which ended the gateway on the spot;
 * where it lived on, later commits lost records, and payouts were made twice.
 */
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { expect, onTestFinished, test } from 'vitest';
import { createSandbox } from '../../src/sandbox/sandbox.ts';
import { withdraw } from '../support/client.ts';
import { FAST_START } from '../support/command.ts';
import { temporaryFolder, testConfig } from '../support/config.ts';
import { spawnGateway } from '../support/spawn.ts';
import { until } from '../support/until.ts';

const AT_ONCE = 8;
/** The file of the store may grow to this size. */
const FULL_BYTES = 200_000;
const FAILED = 'the store takes nothing any more';

test('a commit that cannot be written: the gateway ends in order, and nothing is paid twice', async () => {
  const sandbox = await createSandbox({ port: 0 });
  onTestFinished(() => sandbox.close());
  const config = testConfig(temporaryFolder(), sandbox.url, {
    lock: { leaseMs: 500 },
    idempotency: { settleRetryMs: 200 },
    shutdown: { delayMs: 300, graceMs: 1000 },
  });
  const gateway = await spawnGateway(config, FAST_START);
  const exited = once(gateway.child, 'exit');
  execFileSync('prlimit', ['--pid', `${gateway.pid}`, `--fsize=${FULL_BYTES}:unlimited`]);
  const told = new Map<string, { status: number; body: string }>();
  const pay = async (key: string) => {
    const answer = await withdraw(gateway.url, { key }).catch(() => undefined);
    if (answer) told.set(key, { status: answer.status, body: answer.body.toString() });
    return answer;
  };
  const merchants = Array.from({ length: AT_ONCE }, async () => {
    // Until the gateway has gone.
    while (await pay(randomUUID()));
  });
  await until(() => gateway.lines.some((line) => line.includes(FAILED)));
  // Somebody stops it at that very moment: it goes on ending in order.
  gateway.child.kill('SIGTERM');
  expect(await exited).toEqual([74, null]);
  await Promise.all(merchants);
  expect(gateway.lines.filter((line) => line.includes(FAILED))).toHaveLength(1);
  const statuses = new Set([...told.values()].map(({ status }) => status));
  expect([...statuses].sort()).toEqual([201, 503]);

  const heir = await spawnGateway(config, FAST_START);
  for (const [key, { status, body }] of told) {
    expect(sandbox.ledger.payouts({ key })).toBe(status === 201 ? 1 : 0);
    const again = await withdraw(heir.url, { key });
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    if (status === 503) expect(again.status).toBe(201);
    // What was told while the store took nothing is in doubt.
    else if (again.status === 201) expect(again.body.toString()).toBe(body);
    else expect(again.json()).toMatchObject({ error: { code: 'outcome_unknown' } });
  }
  expect(await heir.end()).toBe(0);
});
