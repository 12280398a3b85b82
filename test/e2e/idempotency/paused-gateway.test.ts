import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { isReplay, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { testConfig } from '../../support/config.ts';
import { executionOf } from '../../support/execution.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { isStopped } from '../../support/process-life.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { gatewayForTest, openSandbox } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

/**
 * Loaded before the gateway's own command, whose code is not changed: once this file exists, the process stops itself when a
 * connection is about to be opened for a request.
 */
const stopping = (file: string) => `
  import diagnostics from 'node:diagnostics_channel';
  import { existsSync, rmSync } from 'node:fs';
  diagnostics.subscribe('undici:client:beforeConnect', () => {
    if (!existsSync('${file}')) return;
    rmSync('${file}');
    process.kill(process.pid, 'SIGSTOP');
  });`;

it('a gateway that is paused between its start and the first byte sends nothing once an operator released the key', async () => {
  const [sandbox, folder, armed] = [await openSandbox(), newFolder(), join(newFolder(), 'armed')];
  const lock = { leaseMs: 1500 };
  const other = await gatewayForTest(testConfig(folder, sandbox.url, { lock }));
  // Only the fence, and no time limit, prevents it from sending.
  const patient = testConfig(folder, sandbox.url, { lock, upstream: { responseTimeoutMs: 60_000 } });
  const preload = `data:text/javascript,${encodeURIComponent(stopping(armed))}`;
  const paused = await spawnGateway(patient, { NODE_OPTIONS: `--import=${preload}` });
  const key = randomUUID();
  writeFileSync(armed, '');
  const first = withdraw(paused.url, { key });
  await until(() => isStopped(paused.pid));
  expect(sandbox.requests.ofKey(key)).toBe(0);

  // As soon as its owner counts as dead.
  const { desk } = other.gateway;
  const recordId = recordIdOf('gateway', 'M-ALPHA', key);
  const word = { as: 'released' as const, by: 'ada', reason: 'not in the books' };
  const request = { recordId, ...word, execution: await executionOf(desk, recordId) };
  await until(async () => (await desk.resolve(request)).kind === 'found');
  const executed = await withdraw(other.url, { key });
  expect([executed.status, isReplay(executed)]).toEqual([201, false]);
  process.kill(paused.pid, 'SIGCONT');

  expectProblem(await first, { status: 502, code: 'upstream_unreachable' });
  for (const { url } of [paused, other]) {
    const retry = await withdraw(url, { key });
    expect([retry.status, isReplay(retry), retry.body]).toEqual([201, true, executed.body]);
  }
  expect([sandbox.requests.ofKey(key), sandbox.ledger.payouts({ key })]).toEqual([1, 1]);
  expect(await metric(paused.adminUrl, 'oncegate_stale_total', { write: 'release' })).toBe(1);
  // The gateway sends as before.
  expect((await withdraw(paused.url, { key: randomUUID() })).status).toBe(201);
});
