import { randomUUID } from 'node:crypto';
import { describe, expect, it, onTestFinished } from 'vitest';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { FAST_START } from '../../support/command.ts';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openGateway } from '../../support/stack.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

describe.each(storeKinds)('on %s, a gateway that is killed while the backend works', (kind) => {
  it('leaves the key in doubt, and completed keys stay completed', async () => {
    const sandbox = await createSandbox({ port: 0 });
    onTestFinished(() => sandbox.close());
    const config = testConfig(temporaryFolder(), sandbox.url, {
      ...(await storeSections(kind)),
      lock: { leaseMs: 2000 },
    });
    const [completed, lost] = [randomUUID(), randomUUID()];

    const doomed = await spawnGateway(config, FAST_START);
    const before = await withdraw(doomed.url, { key: completed });
    const cut = withdraw(doomed.url, { key: lost, fault: 'delay=60000' });
    const answered = expect(cut).rejects.toThrow(/hang up|reset/i);
    await until(() => sandbox.requests.ofKey(lost) === 1);
    expect(await doomed.end('SIGKILL')).toBe('SIGKILL');
    await answered;

    const heir = await openGateway(config);
    onTestFinished(() => heir.shutdown());
    // The owner counts as alive until the lease has lapsed, so the retry waits and then gets the answer.
    expectProblem(await withdraw(heir.url, { key: lost }), { status: 409, code: 'outcome_unknown' });
    expect(sandbox.ledger.payouts({ key: lost })).toBe(0);
    sandbox.endDelays(lost);
    await until(() => sandbox.ledger.payouts({ key: lost }) === 1);
    expectProblem(await withdraw(heir.url, { key: lost }), { status: 409, code: 'outcome_unknown' });
    expect(sandbox.requests.ofKey(lost)).toBe(1);

    const replayed = await withdraw(heir.url, { key: completed });
    expect([replayed.status, replayed.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(replayed.body).toEqual(before.body);
    expect(sandbox.ledger.payouts()).toBe(2);
  });
});
