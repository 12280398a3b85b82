import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, type TestContext } from 'vitest';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { type MoreConfig, testConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { openGateway, type TestGateway } from '../../support/stack.ts';
import { type StoreKind, storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { holding, LEASE_MS, LOOKUP_TOKEN, lookingUp, retrying } from './policies.ts';

/** A backend, a gateway in a process that can be paused, and another gateway on the same store. */
async function open(
  { onTestFinished }: Pick<TestContext, 'onTestFinished'>,
  kind: StoreKind,
  more: MoreConfig,
) {
  const sandbox = await createSandbox({ port: 0, lookupToken: LOOKUP_TOKEN });
  onTestFinished(() => sandbox.close());
  const sections = await storeSections(kind);
  const folder = newFolder();
  // So much time that it is not the time limit that keeps the paused one from sending.
  const upstream = { maxConnections: 1, responseTimeoutMs: 60_000 };
  const paused = await spawnGateway(
    testConfig(folder, sandbox.url, { ...sections, ...holding, upstream }),
    FAST_START,
    newFolder(),
  );
  const other = await openGateway(testConfig(folder, sandbox.url, { ...sections, ...more }));
  onTestFinished(() => other.shutdown());
  return { sandbox, paused, other };
}

/** Much less than a lease, and much more than a commit takes. */
const WRITES_WITHIN_MS = LEASE_MS / 3;

/** Between two commits: with a process that is stopped within one stays LMDB's writer lock, and nobody else can write. */
async function stop(paused: SpawnedGateway, other: TestGateway): Promise<void> {
  await until(async () => {
    paused.child.kill('SIGSTOP');
    // Paid by nobody, and yet claimed and settled.
    const control = withdraw(other.url, { key: randomUUID(), amount: 0 }).then(() => true);
    if (await Promise.race([control, sleep(WRITES_WITHIN_MS, false)])) return true;
    paused.child.kill('SIGCONT');
    await control;
    return false;
  });
}

const executing = (gateway: SpawnedGateway) => metric(gateway.adminUrl, 'oncegate_executing');

describe.concurrent.each(storeKinds)('on %s, a gateway that is paused', (kind) => {
  it.for<[string, MoreConfig]>([
    ['retry', retrying],
    ['lookup', lookingUp()],
  ])(
    'while a request queues does not send it once another one has executed it (%s)',
    async ([, more], test) => {
      const { sandbox, paused, other } = await open(test, kind, more);
      const [busy, key] = [randomUUID(), randomUUID()];
      const first = withdraw(paused.url, { key: busy, fault: 'delay=3000' });
      await until(() => sandbox.requests.ofKey(busy) === 1);
      const queued = withdraw(paused.url, { key });
      await until(async () => (await executing(paused)) === 2);
      await stop(paused, other);

      const executed = await until(async () => {
        const answer = await withdraw(other.url, { key });
        return answer.status === 201 ? answer : undefined;
      });
      expect(executed.headers['idempotent-replayed']).toBeUndefined();
      await until(() => sandbox.ledger.payouts({ key: busy }) === 1);
      paused.child.kill('SIGCONT');

      expect((await first).status).toBe(201);
      expectProblem(await queued, { status: 502, code: 'upstream_unreachable' });
      expect(sandbox.requests.ofKey(key)).toBe(1);
      expect(sandbox.ledger.payouts({ key })).toBe(1);
      const retry = await withdraw(paused.url, { key });
      expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
      expect(retry.body).toEqual(executed.body);
      expect(sandbox.ledger.payouts()).toBe(2);
    },
  );

  it('after it sent, and whose key was sent again (retry), tells of both answers', async (test) => {
    const { sandbox, paused, other } = await open(test, kind, retrying);
    const key = randomUUID();
    const first = withdraw(paused.url, { key, fault: `delay=${3 * LEASE_MS}` });
    await until(() => sandbox.requests.ofKey(key) === 1);
    await stop(paused, other);
    const second = await withdraw(other.url, { key });
    expect(second.status).toBe(201);
    // The sandbox knows no keys: it shows what retry does in front of such a backend.
    await until(() => sandbox.ledger.payouts({ key }) === 2);
    paused.child.kill('SIGCONT');
    const late = await first;
    expect(late.status).toBe(201);
    const line = await until(() =>
      paused.lines.find((text) => text.includes('a late answer was not stored')),
    );
    const told = JSON.parse(line);
    expect(told).toMatchObject({
      level: 'error',
      merchant: 'M-ALPHA',
      operation: 'withdraw',
      late: { state: 'settled', status: 201, bodyBytes: late.body.length },
      stands: { state: 'settled', status: 201, bodyBytes: second.body.length },
    });
    expect(told.late.bodySha256).toMatch(/^[0-9a-f]{16}$/);
    expect(told.stands.bodySha256).not.toBe(told.late.bodySha256);
    for (const { id } of sandbox.ledger.transactions({ key })) expect(line).not.toContain(id);
    expect(await metric(paused.adminUrl, 'oncegate_stale_total', { write: 'settle' })).toBe(1);
    const labels = { operation: 'withdraw' };
    expect(await metric(other.adminUrl, 'oncegate_sent_again_total', labels)).toBe(1);
    const retry = await withdraw(paused.url, { key });
    expect(retry.body).toEqual(second.body);
  });
});
