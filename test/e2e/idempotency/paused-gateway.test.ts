import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, type TestContext } from 'vitest';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { type MoreConfig, testConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { PAUSE_POINTS, spawnPausingGateway } from '../../support/pausing-gateway.ts';
import { expectProblem } from '../../support/problem.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { openGateway, type TestGateway } from '../../support/stack.ts';
import { type StoreKind, storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { holding, LEASE_MS, LOOKUP_TOKEN, lookingUp, retrying } from './policies.ts';

/** A backend, and a second gateway on the same store as the paused one. */
async function open(
  { onTestFinished }: Pick<TestContext, 'onTestFinished'>,
  kind: StoreKind,
  more: MoreConfig,
) {
  const sandbox = await createSandbox({ port: 0, lookupToken: LOOKUP_TOKEN });
  onTestFinished(() => sandbox.close());
  const sections = await storeSections(kind);
  const folder = newFolder();
  // So long that only the fence, and no time limit, prevents the paused gateway from sending.
  const times = { responseTimeoutMs: 60_000, queueTimeoutMs: 60_000 };
  const config = testConfig(folder, sandbox.url, {
    ...sections,
    ...holding,
    upstream: { maxConnections: 1, ...times },
  });
  const other = await openGateway(testConfig(folder, sandbox.url, { ...sections, ...more }));
  onTestFinished(() => other.shutdown());
  return { sandbox, config, other };
}

/** Much less than a lease, and much more than a commit takes. */
const WRITES_WITHIN_MS = LEASE_MS / 3;

/** Pauses between two commits: a process that is stopped within one holds SQLite's write lock, and no other process can write. */
async function stop(paused: SpawnedGateway, other: TestGateway): Promise<void> {
  await until(async () => {
    paused.child.kill('SIGSTOP');
    // The backend refuses an amount of zero, but the key is still started and completed.
    const control = withdraw(other.url, { key: randomUUID(), amount: 0 }).then(() => true);
    if (await Promise.race([control, sleep(WRITES_WITHIN_MS, false)])) return true;
    paused.child.kill('SIGCONT');
    await control;
    return false;
  });
}

/** Retries until this gateway executes the key's request. */
async function untilExecuted({ url }: TestGateway, key: string): Promise<TestAnswer> {
  const executed = await until(async () => {
    const answer = await withdraw(url, { key });
    return answer.status === 201 ? answer : undefined;
  });
  expect(executed.headers['idempotent-replayed']).toBeUndefined();
  return executed;
}

/** An operator releases the key as soon as its owner counts as dead. */
async function release({ gateway: { desk } }: TestGateway, key: string): Promise<void> {
  const scope = scopeOf('M-ALPHA', key);
  const word = { as: 'released' as const, by: 'ada', reason: 'not in the books' };
  await until(async () => (await desk.answer({ kind: 'resolve', scope, ...word })).kind === 'found');
}

/** How the key becomes free, or is executed again, while its owner is paused. */
const ways: [way: string, more: MoreConfig, free: (other: TestGateway, key: string) => Promise<void>][] = [
  ['an operator released it', holding, release],
  ['a lookup released it', lookingUp(), async () => {}],
  ['the policy retry restarted it', retrying, async () => {}],
];

const cases = PAUSE_POINTS.flatMap((point) => ways.map((way) => [point, ...way] as const));

/** One after the other on each store, because each starts a process and waits for leases. */
const inTurn = { concurrent: false };

describe.concurrent.each(storeKinds)('on %s, a gateway that is paused', (kind) => {
  it.for(cases)(
    'between its start and the first byte (%s) sends nothing once %s',
    inTurn,
    async ([point, , more, free], test) => {
      const { sandbox, config, other } = await open(test, kind, more);
      const paused = await spawnPausingGateway(config, point);
      const key = randomUUID();
      paused.arm();
      const first = withdraw(paused.url, { key });
      await paused.untilPaused();
      expect(sandbox.requests.ofKey(key)).toBe(0);

      await free(other, key);
      const executed = await untilExecuted(other, key);
      expect(sandbox.requests.ofKey(key)).toBe(1);
      paused.resume();

      expectProblem(await first, { status: 502, code: 'upstream_unreachable' });
      for (const { url } of [paused, other]) {
        const retry = await withdraw(url, { key });
        expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
        expect(retry.body).toEqual(executed.body);
      }
      expect(sandbox.requests.ofKey(key)).toBe(1);
      expect(sandbox.ledger.payouts({ key })).toBe(1);
      expect(await metric(paused.adminUrl, 'oncegate_stale_total', { write: 'release' })).toBe(1);
      // The gateway serves as before.
      expect((await withdraw(paused.url, { key: randomUUID() })).status).toBe(201);
    },
  );

  it.for(PAUSE_POINTS)(
    'between its start and the first byte (%s), for longer than its lease, sends nothing and frees its key',
    inTurn,
    async (point, test) => {
      const { sandbox, config, other } = await open(test, kind, holding);
      const paused = await spawnPausingGateway(config, point);
      const key = randomUUID();
      paused.arm();
      const first = withdraw(paused.url, { key });
      await paused.untilPaused();
      // It waits until the owner counts as dead.
      expectProblem(await withdraw(other.url, { key }), { status: 409, code: 'outcome_unknown' });
      paused.resume();
      expectProblem(await first, { status: 502, code: 'upstream_unreachable' });
      expect(sandbox.requests.ofKey(key)).toBe(0);
      expect((await withdraw(other.url, { key })).status).toBe(201);
      expect(sandbox.ledger.payouts({ key })).toBe(1);
    },
  );

  it(
    'while a request queues stores and sends nothing for it, and replays what another one executed',
    inTurn,
    async (test) => {
      const { sandbox, config, other } = await open(test, kind, holding);
      const paused = await spawnGateway(config, FAST_START, newFolder());
      const [busy, key] = [randomUUID(), randomUUID()];
      const first = withdraw(paused.url, { key: busy, fault: 'delay=3000' });
      await until(() => sandbox.requests.ofKey(busy) === 1);
      const queued = withdraw(paused.url, { key });
      await until(async () => (await metric(paused.adminUrl, 'oncegate_upstream_slots_queued')) === 1);
      await stop(paused, other);

      // There is no record of the queued request, so no request has to wait for its lease.
      const executed = await withdraw(other.url, { key, headers: { Prefer: 'wait=0' } });
      expect([executed.status, executed.headers['idempotent-replayed']]).toEqual([201, undefined]);
      await until(() => sandbox.ledger.payouts({ key: busy }) === 1);
      paused.child.kill('SIGCONT');

      expect((await first).status).toBe(201);
      const replay = await queued;
      expect([replay.status, replay.headers['idempotent-replayed']]).toEqual([201, 'true']);
      expect(replay.body).toEqual(executed.body);
      expect(sandbox.requests.ofKey(key)).toBe(1);
      expect(sandbox.ledger.payouts({ key })).toBe(1);
      expect(sandbox.ledger.payouts()).toBe(2);
    },
  );

  it(
    'after it sent, and whose key was sent again (retry), logs that there are two answers',
    inTurn,
    async (test) => {
      const { sandbox, config, other } = await open(test, kind, retrying);
      const paused = await spawnGateway(config, FAST_START, newFolder());
      const key = randomUUID();
      const first = withdraw(paused.url, { key, fault: `delay=${3 * LEASE_MS}` });
      await until(() => sandbox.requests.ofKey(key) === 1);
      await stop(paused, other);
      const second = await withdraw(other.url, { key });
      expect(second.status).toBe(201);
      // The sandbox ignores keys, so it shows what retry does in front of a backend without idempotency.
      await until(() => sandbox.ledger.payouts({ key }) === 2);
      paused.child.kill('SIGCONT');
      // Its merchant gets the same answer as every retry.
      const late = await first;
      expect([late.status, late.headers['idempotent-replayed'], late.body]).toEqual([
        201,
        'true',
        second.body,
      ]);
      const line = await until(() =>
        paused.lines.find((text) => text.includes('a late response was not stored')),
      );
      const logged = JSON.parse(line);
      expect(logged).toMatchObject({
        level: 'error',
        merchant: 'M-ALPHA',
        operation: 'withdraw',
        late: { state: 'completed', status: 201, bodyBytes: second.body.length },
        stored: { state: 'completed', status: 201, bodyBytes: second.body.length },
      });
      expect(logged.late.bodySha256).toMatch(/^[0-9a-f]{16}$/);
      expect(logged.stored.bodySha256).not.toBe(logged.late.bodySha256);
      for (const { id } of sandbox.ledger.transactions({ key })) expect(line).not.toContain(id);
      expect(await metric(paused.adminUrl, 'oncegate_stale_total', { write: 'complete' })).toBe(1);
      const labels = { operation: 'withdraw' };
      expect(await metric(other.adminUrl, 'oncegate_sent_again_total', labels)).toBe(1);
      const retry = await withdraw(paused.url, { key });
      expect(retry.body).toEqual(second.body);
    },
  );
});
