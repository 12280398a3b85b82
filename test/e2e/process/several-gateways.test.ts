import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { isReplay, withdraw } from '../../support/client.ts';
import { newFolder, run } from '../../support/command.ts';
import { configFor, parsedConfig } from '../../support/config.ts';
import { executionShown } from '../../support/execution.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { query } from '../../support/sqlite-files.ts';
import { openSandbox } from '../../support/stack.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

/** Long enough for a request within the lease, on a loaded machine. */
const LEASE_MS = 2500;

/** The backend holds such a payout until the test ends its delay. */
const HELD = 'delay=60000';

/** Stops a process between two commits: if it is stopped within one, it holds SQLite's write lock, and no other can write. */
async function pause(paused: SpawnedGateway, other: { url: string }): Promise<void> {
  await until(async () => {
    process.kill(paused.pid, 'SIGSTOP');
    // The backend refuses an amount of zero, but the key is still started and completed.
    const control = withdraw(other.url, { key: randomUUID(), amount: 0 }).then(() => true);
    if (await Promise.race([control, sleep(COMMITS_WITHIN_MS, false)])) return true;
    process.kill(paused.pid, 'SIGCONT');
    await control;
    return false;
  });
}

const COMMITS_WITHIN_MS = 800;

/** The tests of a store run one after the other. The two stores run concurrently, because both wait for leases. */
const inTurn = { concurrent: false };

describe.concurrent.each(storeKinds)('three gateway processes on one %s', (kind) => {
  let sandbox: Sandbox;
  let a: SpawnedGateway;
  let b: SpawnedGateway;
  let c: SpawnedGateway;
  let storePath = '';
  beforeAll(async () => {
    sandbox = await openSandbox();
    const config = configFor(sandbox, {
      ...(await storeSections(kind)),
      lock: { leaseMs: LEASE_MS },
      upstream: { responseTimeoutMs: 20_000 },
      idempotency: { countDoubtsEveryMs: 300 },
    });
    const { store } = parsedConfig(config);
    if (store.kind === 'sqlite') storePath = store.path;
    [a, b, c] = await Promise.all([spawnGateway(config), spawnGateway(config), spawnGateway(config)]);
  });
  const urlOf = (at: number) => ([a, b, c][at % 3] as SpawnedGateway).url;

  it('make one payout of 50 withdraws with one key, and give all the same bytes', inTurn, async () => {
    const key = randomUUID();
    const burst = Array.from({ length: 50 }, (_, at) => withdraw(urlOf(at), { key, fault: 'delay=150' }));
    const answers = await Promise.all(burst);
    expect(answers.map(({ status }) => status)).toEqual(Array(50).fill(201));
    expect(new Set(answers.map(({ body }) => body.toString()))).toHaveLength(1);
    expect(answers.filter(isReplay)).toHaveLength(49);
    expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('complete what one of them executed while it was paused, unless an operator has', inTurn, async () => {
    const [own, byHand] = [randomUUID(), randomUUID()];
    const firsts = [own, byHand].map((key) => withdraw(a.url, { key, fault: HELD }));
    await until(() => [own, byHand].every((key) => sandbox.requests.ofKey(key) === 1));
    await pause(a, b);
    for (const key of [own, byHand]) sandbox.endDelays(key);
    const inDoubt = { status: 409, code: 'outcome_unknown' } as const;
    expectProblem(await withdraw(b.url, { key: own }), inDoubt);

    const body = join(newFolder(), 'body');
    writeFileSync(body, '{"by":"hand"}');
    const named = ['--config', b.file, '--merchant', 'M-ALPHA', '--key', byHand, '--by', 'ada'];
    const how = ['--as', 'completed', '--reason', 'in the books', '--status', '201', '--body', body];
    // The lease may lapse a moment later.
    const resolved = await until(async () => {
      const execution = await executionShown(b.file, byHand);
      const ended = await run(['records', 'resolve', ...named, ...how, ...execution]);
      return ended.code === 0 ? ended : undefined;
    });
    expect(resolved.stdout).toMatch(/^withdraw of M-ALPHA was executing and is now completed/);
    const labels = { as: 'completed', by: 'command_line' };
    for (const { adminUrl } of [b, c])
      await until(async () => (await metric(adminUrl, 'oncegate_resolutions_total', labels)) === 1);

    process.kill(a.pid, 'SIGCONT');
    const [paid, late] = await Promise.all(firsts);
    expect([paid?.status, paid && isReplay(paid)]).toEqual([201, false]);
    // The first request also gets the stored response, and not its own.
    expect([late?.status, late?.body.toString(), late && isReplay(late)]).toEqual([
      201,
      '{"by":"hand"}',
      true,
    ]);
    const stale = () => metric(a.adminUrl, 'oncegate_stale_total', { write: 'complete' });
    await until(async () => (await stale()) === 1);
    for (const [key, first] of [
      [own, paid],
      [byHand, late],
    ] as const)
      for (const { url } of [a, b, c]) {
        const again = await withdraw(url, { key });
        expect([again.status, isReplay(again), again.body]).toEqual([201, true, first?.body]);
        expect([sandbox.requests.ofKey(key), sandbox.ledger.payouts({ key })]).toEqual([1, 1]);
      }
  });

  it('never pay twice when one of them is killed while it executes', inTurn, async () => {
    const [lost, ...completed] = Array.from({ length: 11 }, () => randomUUID()) as [string, ...string[]];
    const gauge = (name: string) => metric(c.adminUrl, `oncegate_${name}`, { operation: 'withdraw' });
    await until(async () => (await gauge('keys_in_doubt')) === 0);
    const cut = expect(withdraw(a.url, { key: lost, fault: HELD })).rejects.toThrow(/hang up|reset/i);
    await until(() => sandbox.requests.ofKey(lost) === 1);
    const before = await Promise.all(completed.map((key) => withdraw(a.url, { key })));
    expect(await a.end('SIGKILL')).toBe('SIGKILL');
    const patient = withdraw(b.url, { key: lost });
    const hasty = await withdraw(c.url, { key: lost, headers: { Prefer: 'wait=0' } });
    expectProblem(hasty, { status: 409, code: 'request_in_flight', retryAfter: 1 });
    await cut;

    expect(sandbox.ledger.payouts({ key: lost })).toBe(0);
    expectProblem(await patient, { status: 409, code: 'outcome_unknown' });
    sandbox.endDelays(lost);
    await until(() => sandbox.ledger.payouts({ key: lost }) === 1);
    expectProblem(await withdraw(c.url, { key: lost }), { status: 409, code: 'outcome_unknown' });
    expect(sandbox.requests.ofKey(lost)).toBe(1);
    await until(async () => (await gauge('keys_in_doubt')) === 1);
    for (const [at, key] of completed.entries()) {
      const after = await withdraw(urlOf(1 + (at % 2)), { key });
      expect([isReplay(after), after.body]).toEqual([true, before[at]?.body]);
    }
    expect(sandbox.ledger.duplicateKeys()).toEqual([]);
    if (kind === 'redis') return;
    // Another program reads the records in plain columns.
    const columns =
      'lower(hex(record_id)) AS scope, merchant, operation, state, status, CAST(body AS TEXT) AS body';
    const rowOf = (key: string) =>
      query(storePath, `SELECT ${columns} FROM records WHERE idempotency_key = '${key}'`);
    const [key = ''] = completed;
    const named = (of: string) => ({
      scope: recordIdOf('gateway', 'M-ALPHA', of),
      merchant: 'M-ALPHA',
      operation: 'withdraw',
    });
    expect(rowOf(key)).toMatchObject([
      { ...named(key), state: 'completed', status: 201, body: before[0]?.body.toString() },
    ]);
    expect(rowOf(lost)).toMatchObject([{ ...named(lost), state: 'in_doubt', status: null }]);
  });
});
