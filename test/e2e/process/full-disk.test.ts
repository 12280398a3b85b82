import { randomUUID } from 'node:crypto';
import { statSync } from 'node:fs';
import { Agent } from 'node:http';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { EVENTS } from '../../../src/telemetry/events.ts';
import { BEARER, isReplay, send, type TestAnswer, withdraw } from '../../support/client.ts';
import { configFor, parsedConfig } from '../../support/config.ts';
import { limitFiles } from '../../support/limit-files.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const MERCHANTS = 24;

/** Merchants who each send payouts one after the other with new keys, and the answers that they got. */
function payAll({ url }: SpawnedGateway) {
  const answers = new Map<string, TestAnswer>();
  let ends = false;
  const merchants = Array.from({ length: MERCHANTS }, async () => {
    while (!ends) {
      const key = randomUUID();
      const answer = await withdraw(url, { key });
      answers.set(key, answer);
      // As merchants do that are told to wait. Each of these keys is paid in the end.
      if (answer.status === 503) await sleep(100);
    }
  });
  const stop = async () => {
    ends = true;
    await Promise.all(merchants);
  };
  return { answers, stop };
}

// A failed write once ended the gateway; and in one that survived, later commits lost records, and payouts were made twice.
it('a disk that is filled while 24 merchants pay, and freed again: one payout a key, and no result is lost', async () => {
  const sandbox = await openSandbox();
  const config = configFor(sandbox, { idempotency: { completeRetryMs: 300 }, log: { level: 'warn' } });
  const gateway = await spawnGateway({ ...config, log: { level: 'info' } });
  const { store } = parsedConfig(config);
  const wal = join(store.kind === 'sqlite' ? store.path : '', 'records.db-wal');
  const readiness = async () => await send(gateway.adminUrl, { path: '/readyz' });
  const refuses = () => metric(gateway.adminUrl, 'oncegate_store_refuses_writes');
  const known = randomUUID();
  const paid = await withdraw(gateway.url, { key: known });

  const said = (message: string) =>
    gateway.lines
      .map((line) => JSON.parse(line) as Record<string, unknown>)
      .filter(({ msg }) => msg === message);

  const traffic = payAll(gateway);
  const ended = (status: number) =>
    [...traffic.answers.values()].filter((answer) => answer.status === status);
  const paying = async () => {
    const before = ended(201).length;
    await until(() => ended(201).length > before + MERCHANTS);
  };
  // First no byte can be written; then none after the first page.
  for (const [outages, bytes] of [1, 4096].entries()) {
    await paying();
    const refused = ended(503).length;
    limitFiles(gateway.pid, bytes);
    await until(() => ended(503).length > refused + MERCHANTS);
    await until(async () => (await refuses()) === 1);
    // A store that has just worked again is asked after a quarter of a second at the earliest.
    await until(() => said(EVENTS.store_refuses.message).length > outages);
    const { status, body } = await readiness();
    expect([status, body.toString()]).toEqual([503, expect.stringMatching(/"name":"store","ok":false/)]);
    const replay = await withdraw(gateway.url, { key: known });
    expect([replay.status, isReplay(replay), replay.body]).toEqual([201, true, paid.body]);
    expect((await send(gateway.url, { path: '/v2/get_balance', headers: BEARER })).status).toBe(200);
    limitFiles(gateway.pid, 'unlimited');
    await paying();
    await until(async () => (await refuses()) === 0);
    await until(async () => (await readiness()).status === 200);
    await until(() => said(EVENTS.store_works.message).length > outages);
    for (const { message } of [EVENTS.store_refuses, EVENTS.store_works])
      expect(said(message)).toHaveLength(outages + 1);
    expect(said(EVENTS.store_refuses.message).at(-1)?.reason).toMatch(/^sqlite: /);
  }
  // The files cannot grow any more: some writes fit into them, and others fail.
  for (const share of [1, 2, 3]) {
    limitFiles(gateway.pid, Math.floor(statSync(wal).size / share));
    await sleep(300);
    limitFiles(gateway.pid, 'unlimited');
    await paying();
  }
  await traffic.stop();
  // Results that were acknowledged before they were stored are stored now.
  await until(async () => (await metric(gateway.adminUrl, 'oncegate_pending_writes')) === 0);

  expect(gateway.child.exitCode).toBeNull();
  expect(sandbox.ledger.duplicateKeys()).toEqual([]);
  const answered = [...traffic.answers];
  expect(new Set(answered.map(([, { status }]) => status))).toEqual(new Set([201, 503]));
  for (const [, answer] of answered)
    if (answer.status === 503)
      expectProblem(answer, { status: 503, code: 'store_unavailable', retryAfter: 1 });
  const agent = new Agent({ maxSockets: MERCHANTS });
  const retries = answered.map(async ([key, answer]) => {
    const retry = await withdraw(gateway.url, { key, agent });
    expect([codeOf(retry), retry.status]).toEqual(['', 201]);
    if (answer.status === 201) expect([isReplay(retry), retry.body]).toEqual([true, answer.body]);
    else expect(isReplay(retry)).toBe(false);
  });
  await Promise.all(retries);
  expect(sandbox.ledger.duplicateKeys()).toEqual([]);
  expect(sandbox.ledger.payouts()).toBe(answered.length + 1);
  expect(said(EVENTS.store_lost.message)).toEqual([]);
  expect(await gateway.end()).toBe(0);
}, 120_000);
