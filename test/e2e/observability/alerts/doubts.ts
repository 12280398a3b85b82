import { randomUUID } from 'node:crypto';
import { expect, type TestContext } from 'vitest';
import { scopeOf } from '../../../../src/idempotency/fingerprint.ts';
import { send, withdraw } from '../../../support/client.ts';
import { startRedis } from '../../../support/redis-server.ts';
import { openGateway } from '../../../support/stack.ts';
import { until } from '../../../support/until.ts';
import { childrenOf, configFor, openSandbox, startGateway } from '../../process/gateways.ts';
import { executing, HELD, keepOn, PATIENT, type Watch, WITHIN_MS } from './watch.ts';

const COUNT_EVERY_MS = 300;

/** A gateway with two workers is killed while it executes a payout. Nobody retries, and it is started again. */
export async function gatewayDies(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const sandbox = await openSandbox();
  const config = configFor(sandbox, {
    store: { kind: 'redis', url: (await startRedis()).url },
    workers: 2,
    lock: { leaseMs: 1200 },
    idempotency: { countDoubtsEveryMs: COUNT_EVERY_MS, inDoubtPageAfterMs: 2000 },
  });
  const dying = await startGateway(config);
  const other = await openGateway({ ...config, workers: 1 });
  onTestFinished(() => other.shutdown());
  await watch.add(dying, other);

  const key = randomUUID();
  const pay = () => withdraw(dying.url, { key, fault: HELD }).catch(() => undefined);
  const { answer } = await executing(sandbox, key, pay);
  const workers = childrenOf(dying.pid);
  expect(workers).toHaveLength(2);
  for (const pid of [dying.pid, ...workers]) process.kill(pid, 'SIGKILL');
  await answer;
  await watch.fire('OncegateGatewayDown', 'OncegateInDoubt', 'OncegateInDoubtOld');
  const down = (await watch.prometheus.alerts()).filter(({ labels }) => labels.alertname?.endsWith('Down'));
  expect(down.map(({ labels }) => labels.instance)).toEqual([new URL(dying.adminUrl).host]);

  const again = await startGateway(config);
  onTestFinished(async () => void (await again.end()));
  watch.remove(dying);
  await watch.add(again);
  await watch.clear('OncegateGatewayDown');
  expect(await watch.firing()).toEqual(expect.arrayContaining(['OncegateInDoubt', 'OncegateInDoubtOld']));
  // Two gateways show the one key; the rules do not count it twice.
  const expr = 'max by (job, operation) (oncegate_keys_in_doubt{operation="withdraw"})';
  await until(
    async () => (await watch.prometheus.query('oncegate_keys_in_doubt == 1')).length === 2,
    WITHIN_MS,
  );
  expect((await watch.prometheus.query(expr)).map(({ value }) => value)).toEqual([1]);

  const resolution = { as: 'completed' as const, by: 'ada', reason: 'in the books', status: 201 };
  const scope = scopeOf('M-ALPHA', key);
  const resolved = await other.gateway.desk.answer({ kind: 'resolve', scope, ...resolution });
  expect(resolved.kind).toBe('found');
  await watch.clear('OncegateInDoubt', 'OncegateInDoubtOld');
}

const counted = '(oncegate_doubts_counted_timestamp_seconds)';
/** Counts that are older than three seconds are old. See {@link storeIsAway}. */
export const COUNTED = { [`${counted} > 300`]: `${counted} > 3` };

/** Redis is killed while a payout runs, comes back with a setting that can lose keys, and then as it was. */
export async function storeIsAway(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const redis = await startRedis();
  const sandbox = await openSandbox();
  const gateway = await openGateway(
    configFor(sandbox, {
      store: { kind: 'redis', url: redis.url, timeoutMs: 1000 },
      idempotency: { countDoubtsEveryMs: COUNT_EVERY_MS, completeRetryMs: 100 },
      upstream: PATIENT,
    }),
  );
  onTestFinished(() => gateway.shutdown());
  await watch.add(gateway);

  const keys = Array.from({ length: 5 }, () => randomUUID());
  const payouts = await Promise.all(
    keys.map((key) => executing(sandbox, key, () => withdraw(gateway.url, { key, fault: HELD }))),
  );
  await redis.kill();
  const endDelays = keepOn(1000, async (times) => sandbox.endDelays(keys[times] ?? ''));
  onTestFinished(endDelays);
  const stop = keepOn(100, () => withdraw(gateway.url, { key: randomUUID() }));
  onTestFinished(stop);
  const alerts = [
    ...['OncegateCompleteLate', 'OncegateWritesPending', 'OncegateStoreRefusesWrites'],
    ...['OncegateStoreFailing', 'OncegateAvailabilityBurnsFast', 'OncegateDoubtsNotCounted'],
  ];
  await watch.fire(...alerts);

  await redis.restart(['--appendfsync', 'everysec']);
  // As a load balancer does.
  const stopAsking = keepOn(500, () => send(gateway.adminUrl, { path: '/readyz' }));
  onTestFinished(stopAsking);
  await watch.clear(...alerts);
  await watch.fire('OncegateStoreUnsafe');
  await redis.restart();
  await watch.clear('OncegateStoreUnsafe');
  await Promise.all([stop(), stopAsking(), endDelays()]);
  for (const { answer } of payouts) expect((await answer).status).toBe(201);
  for (const key of keys) {
    const retry = await until(async () => {
      const answer = await withdraw(gateway.url, { key });
      return answer.status === 201 ? answer : undefined;
    }, WITHIN_MS);
    expect(retry.headers['idempotent-replayed']).toBe('true');
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  }
}
