/**
 * A failed write to the disk ended the gateway at once. If the process survived, later commits lost records, and payouts were
 * made twice.
 */
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { expect, onTestFinished, test } from 'vitest';
import { createSandbox } from '../../src/sandbox/sandbox.ts';
import { withdraw } from '../support/client.ts';
import { FAST_START } from '../support/command.ts';
import { temporaryFolder, testConfig } from '../support/config.ts';
import { spawnGateway } from '../support/spawn.ts';
import { until } from '../support/until.ts';

const MERCHANTS = 8;
/** The files of the store may grow to this size. */
const FULL_BYTES = 300_000;

test('writes that fail: the gateway stays, nothing is paid twice, and payouts resume by themselves', async () => {
  const sandbox = await createSandbox({ port: 0 });
  onTestFinished(() => sandbox.close());
  const config = testConfig(temporaryFolder(), sandbox.url, {
    idempotency: { completeRetryMs: 200 },
  });
  const gateway = await spawnGateway(config, FAST_START);
  const limit = (bytes: string) =>
    execFileSync('prlimit', ['--pid', `${gateway.pid}`, `--fsize=${bytes}:unlimited`]);
  const answers = new Map<string, { status: number; body: string }>();
  const pay = async (key: string) => {
    const answer = await withdraw(gateway.url, { key });
    answers.set(key, { status: answer.status, body: answer.body.toString() });
    return answer;
  };
  limit(`${FULL_BYTES}`);
  const merchants = Array.from({ length: MERCHANTS }, async () => {
    while ((await pay(randomUUID())).status !== 503);
  });
  await Promise.all(merchants);
  expect([...new Set([...answers.values()].map(({ status }) => status))].sort()).toEqual([201, 503]);
  const paid = [...answers].filter(([, { status }]) => status === 201);
  for (const [key] of paid) expect(sandbox.ledger.payouts({ key })).toBe(1);

  limit('unlimited');
  await until(async () => (await pay(randomUUID())).status === 201);
  for (const [key, { status, body }] of answers) {
    const again = await until(async () => {
      const answer = await withdraw(gateway.url, { key });
      // A result that was answered before it was stored is in doubt until it is stored.
      return answer.status === 201 ? answer : undefined;
    });
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    if (status === 201) expect(again.body.toString()).toBe(body);
  }
  expect(await gateway.end()).toBe(0);
});
