import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import type { Sandbox } from '../../../src/sandbox/create-sandbox.ts';
import { isReplay, withdraw } from '../../support/client.ts';
import { configFor, parsedConfig } from '../../support/config.ts';
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

  it('never pay twice when one of them is killed while it executes', inTurn, async () => {
    const [lost, ...completed] = Array.from({ length: 11 }, () => randomUUID()) as [string, ...string[]];
    const gauge = (name: string) => metric(c.adminUrl, `oncegate_${name}`, { operation: 'withdraw' });
    await until(async () => (await gauge('keys_in_doubt')) === 0);
    const cut = withdraw(a.url, { key: lost, fault: HELD }).catch((error: Error) => error.message);
    await until(() => sandbox.requests.ofKey(lost) === 1);
    const before = await Promise.all(completed.map((key) => withdraw(a.url, { key })));
    expect(await a.end('SIGKILL')).toBe('SIGKILL');
    const patient = withdraw(b.url, { key: lost });
    expect(await cut).toMatch(/hang up|reset/i);

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
    if (kind !== 'sqlite') return;
    // Another program reads the records in plain columns.
    const columns =
      'lower(hex(record_id)) AS recordId, merchant, operation, state, status, CAST(body AS TEXT) AS body';
    const rowOf = (key: string) =>
      query(storePath, `SELECT ${columns} FROM records WHERE idempotency_key = '${key}'`);
    const [key = ''] = completed;
    const named = (of: string) => ({
      recordId: recordIdOf('gateway', 'M-ALPHA', of),
      merchant: 'M-ALPHA',
      operation: 'withdraw',
    });
    expect(rowOf(key)).toMatchObject([
      { ...named(key), state: 'completed', status: 201, body: before[0]?.body.toString() },
    ]);
    expect(rowOf(lost)).toMatchObject([{ ...named(lost), state: 'in_doubt', status: null }]);
  });
});
