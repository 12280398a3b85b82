import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { configFor, isReplay, openSandbox, startGateway } from './gateways.ts';

/** Long enough for a request within the lease, on a loaded machine. */
const LEASE_MS = 2500;

/** The backend holds such a payout until the test ends its delay. */
const HELD = 'delay=60000';

/** The tests of a store run one after the other. The two stores run concurrently, because both wait for leases. */
const inTurn = { concurrent: false };

describe.concurrent.each(storeKinds)('two gateway processes on one %s', (kind) => {
  let sandbox: Sandbox;
  let a: SpawnedGateway;
  let b: SpawnedGateway;
  beforeAll(async () => {
    sandbox = await openSandbox();
    const config = configFor(sandbox, {
      ...(await storeSections(kind)),
      lock: { leaseMs: LEASE_MS },
      upstream: { responseTimeoutMs: 20_000 },
    });
    [a, b] = await Promise.all([startGateway(config), startGateway(config)]);
  });

  it('make one payout of 50 withdraws with one key, and give all the same bytes', inTurn, async () => {
    const key = randomUUID();
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, at) => withdraw(at % 2 ? a.url : b.url, { key, fault: 'delay=150' })),
    );
    expect(answers.map(({ status }) => status)).toEqual(Array(50).fill(201));
    expect(new Set(answers.map(({ body }) => body.toString()))).toHaveLength(1);
    expect(answers.filter(isReplay)).toHaveLength(49);
    expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('complete what one of them executed while it was paused for longer than its lease', inTurn, async () => {
    const key = randomUUID();
    const first = withdraw(a.url, { key, fault: HELD });
    await until(() => sandbox.requests.ofKey(key) === 1);
    process.kill(a.pid, 'SIGSTOP');
    sandbox.endDelays(key);
    const inDoubt = { status: 409, code: 'outcome_unknown' } as const;
    expectProblem(await withdraw(b.url, { key }), inDoubt);
    expect(sandbox.ledger.payouts({ key })).toBe(1);

    process.kill(a.pid, 'SIGCONT');
    const paid = await first;
    expect([paid.status, isReplay(paid)]).toEqual([201, false]);
    for (const { url } of [a, b]) {
      const again = await withdraw(url, { key });
      expect([again.status, isReplay(again)]).toEqual([201, true]);
      expect(again.body).toEqual(paid.body);
    }
    expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('never pay twice when one of them is killed while it executes', inTurn, async () => {
    const [completed, lost] = [randomUUID(), randomUUID()];
    const before = await withdraw(a.url, { key: completed });
    const cut = expect(withdraw(a.url, { key: lost, fault: HELD })).rejects.toThrow(/hang up|reset/i);
    await until(() => sandbox.requests.ofKey(lost) === 1);
    expect(await a.end('SIGKILL')).toBe('SIGKILL');
    const patient = withdraw(b.url, { key: lost });
    const hasty = await withdraw(b.url, { key: lost, headers: { Prefer: 'wait=0' } });
    expectProblem(hasty, { status: 409, code: 'request_in_flight', retryAfter: 1 });
    await cut;

    expect(sandbox.ledger.payouts({ key: lost })).toBe(0);
    expectProblem(await patient, { status: 409, code: 'outcome_unknown' });
    sandbox.endDelays(lost);
    await until(() => sandbox.ledger.payouts({ key: lost }) === 1);
    expectProblem(await withdraw(b.url, { key: lost }), { status: 409, code: 'outcome_unknown' });
    expect(sandbox.requests.ofKey(lost)).toBe(1);
    const after = await withdraw(b.url, { key: completed });
    expect([isReplay(after), after.body]).toEqual([true, before.body]);
    expect(sandbox.ledger.duplicateKeys()).toEqual([]);
  });
});
