import { randomUUID } from 'node:crypto';
import { describe, expect, it, type TestContext } from 'vitest';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { type MoreConfig, testConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openGateway, type TestGateway } from '../../support/stack.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { LEASE_MS, LOOKUP_TOKEN, lookingUp } from './policies.ts';

const LOOKUPS = 'GET /v1/transactions';
const ECHOES = 'GET /v3/echo';
/** Also the lease: a gateway that is paused for longer does not send at all. */
const RELEASE_AFTER_MS = 2000;
const replayed = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';
/** Whether the key is in doubt, without waiting for a lookup. */
const atOnce = { Prefer: 'wait=0' };

describe.concurrent.each(storeKinds)('on %s, under inDoubt: lookup', (kind) => {
  /** Takes the test's own `onTestFinished`, because these tests run concurrently. */
  async function open({ onTestFinished }: Pick<TestContext, 'onTestFinished'>, more: MoreConfig) {
    const sandbox = await createSandbox({ port: 0, lookupToken: LOOKUP_TOKEN });
    onTestFinished(() => sandbox.close());
    const config = testConfig(newFolder(), sandbox.url, { ...(await storeSections(kind)), ...more });
    const gateway = async () => {
      const opened = await openGateway(config);
      onTestFinished(() => opened.shutdown());
      return opened;
    };
    return { sandbox, config, gateway };
  }

  const resolutions = (gateway: TestGateway, as: string) =>
    metric(gateway.adminUrl, 'oncegate_resolutions_total', { as, by: 'lookup' });

  it('an execution whose answer was lost is found in the background, and replayed', async (test) => {
    const { sandbox, gateway } = await open(test, lookingUp({}, 60_000));
    const opened = await gateway();
    const key = randomUUID();
    const first = await withdraw(opened.url, { key, fault: 'execute-then-reset' });
    expectProblem(first, { status: 502, code: 'outcome_unknown' });
    await until(async () => (await resolutions(opened, 'completed')) === 1);
    const lookups = sandbox.requests.ofPath(LOOKUPS);

    const retry = await withdraw(opened.url, { key, headers: atOnce });
    expect([retry.status, replayed(retry)]).toEqual([201, true]);
    const [transaction] = sandbox.ledger.transactions({ key });
    expect(retry.json()).toMatchObject({ success: true, data: { transaction_id: transaction?.id } });
    expectProblem(await withdraw(opened.url, { key, amount: 11 }), {
      status: 422,
      code: 'idempotency_key_reused',
    });
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(sandbox.requests.ofPath(LOOKUPS)).toBe(lookups);
    expect(
      await metric(opened.adminUrl, 'oncegate_lookups_total', { operation: 'withdraw', result: 'completed' }),
    ).toBe(1);
    const log = JSON.stringify(opened.log);
    expect(log).toContain('GET answered 200');
    for (const secret of [LOOKUP_TOKEN, key, String(transaction?.id)]) expect(log).not.toContain(secret);
  });

  it('the key of a request that was not executed is not released too early, and then executed once', async (test) => {
    const { sandbox, gateway } = await open(test, lookingUp({}, RELEASE_AFTER_MS));
    const opened = await gateway();
    const key = randomUUID();
    const startedMs = performance.now();
    await withdraw(opened.url, { key, fault: 'reset-before-execute' });
    const answers: TestAnswer[] = [];
    await until(async () => {
      answers.push(await withdraw(opened.url, { key }));
      return answers.at(-1)?.status === 201;
    });
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(RELEASE_AFTER_MS);
    for (const early of answers.slice(0, -1)) expectProblem(early, { status: 409, code: 'outcome_unknown' });
    expect(replayed(answers.at(-1) as TestAnswer)).toBe(false);
    const again = await withdraw(opened.url, { key });
    expect([again.status, replayed(again)]).toEqual([201, true]);
    expect(again.body).toEqual(answers.at(-1)?.body);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(sandbox.requests.ofKey(key)).toBe(2);
    await until(async () => (await resolutions(opened, 'released')) === 1);
  });

  it.for<[string, MoreConfig]>([
    ['by the pass after its start', lookingUp()],
    ['when the merchant asks again', lookingUp({ firstAfterMs: 60_000, maxPauseMs: 60_000 })],
  ])('a gateway looks up what a killed gateway had sent: %s', async ([how, more], test) => {
    const { sandbox, config, gateway } = await open(test, more);
    const key = randomUUID();
    // Its own time limit must not end the request before it is killed.
    const upstream = { ...config.upstream, url: sandbox.url, responseTimeoutMs: 20_000 };
    const slow = { ...config, ...lookingUp({ releaseAfterMs: 20_000 }), upstream };
    const doomed = await spawnGateway(slow, FAST_START, newFolder());
    const cut = withdraw(doomed.url, { key, fault: 'delay=60000' });
    const answered = expect(cut).rejects.toThrow(/hang up|reset/i);
    await until(() => sandbox.requests.ofKey(key) === 1);
    await doomed.end('SIGKILL');
    await answered;
    sandbox.endDelays(key);
    await until(() => sandbox.ledger.payouts({ key }) === 1);

    const heir = await gateway();
    if (how.startsWith('by the pass')) await until(async () => (await resolutions(heir, 'completed')) === 1);
    const retry = await withdraw(heir.url, { key });
    expect([retry.status, replayed(retry)]).toEqual([201, true]);
    expect(retry.json()).toMatchObject({
      data: { transaction_id: sandbox.ledger.transactions({ key })[0]?.id },
    });
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(sandbox.requests.ofKey(key)).toBe(1);
  });

  it('a late answer of a paused gateway completes the key, and lookups stop', async (test) => {
    // A lookup that never decides: the answer completes the key.
    const { sandbox, config, gateway } = await open(test, {
      ...lookingUp({ path: '/v3/echo?merchant={merchant}&key={key}', completed: [299] }),
      upstream: { responseTimeoutMs: LEASE_MS },
    });
    const patient = { ...config, ...lookingUp({ releaseAfterMs: 20_000 }) };
    const upstream = { ...config.upstream, url: sandbox.url, responseTimeoutMs: 20_000 };
    const paused = await spawnGateway({ ...patient, upstream }, FAST_START, newFolder());
    const other = await gateway();
    const key = randomUUID();
    const first = withdraw(paused.url, { key, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(key) === 1);
    paused.child.kill('SIGSTOP');

    expectProblem(await withdraw(other.url, { key }), { status: 409, code: 'outcome_unknown' });
    await until(() => sandbox.requests.ofPath(ECHOES) > 1);
    sandbox.endDelays(key);
    paused.child.kill('SIGCONT');
    const answer = await first;
    expect(answer.status).toBe(201);
    const retry = await withdraw(other.url, { key });
    expect([retry.status, replayed(retry)]).toEqual([201, true]);
    expect(retry.body).toEqual(answer.body);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    const asked = await idleLookups(sandbox.requests.ofPath.bind(sandbox.requests));
    expect(await metric(other.adminUrl, 'oncegate_lookups_total', { result: 'unknown' })).toBe(asked);
    expect(await resolutions(other, 'completed')).toBe(0);
  });
});

/** The number of lookups, when there have been none for many times their longest pause. */
async function idleLookups(ofPath: (path: string) => number): Promise<number> {
  let [seen, sinceMs] = [ofPath(ECHOES), performance.now()];
  return await until(() => {
    const now = ofPath(ECHOES);
    if (now !== seen) [seen, sinceMs] = [now, performance.now()];
    return performance.now() - sinceMs > 300 ? seen : undefined;
  });
}
