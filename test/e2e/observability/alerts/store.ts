import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { rmSync, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, type TestContext } from 'vitest';
import { scopeOf } from '../../../../src/idempotency/fingerprint.ts';
import { systemClock } from '../../../../src/kernel/clock.ts';
import { send, withdraw } from '../../../support/client.ts';
import { newFolder } from '../../../support/command.ts';
import { startRedis } from '../../../support/redis-server.ts';
import { openGateway, openStack } from '../../../support/stack.ts';
import { onRedis } from '../../../support/stores.ts';
import { startProxy } from '../../../support/tcp-proxy.ts';
import { until } from '../../../support/until.ts';
import { configFor, openSandbox, startGateway } from '../../process/gateways.ts';
import { executing, HELD, keepOn, PATIENT, type Watch, WITHIN_MS } from './watch.ts';

const LEASE_MS = 600;
const MIB = 1024 * 1024;

/** A gateway is stopped for longer than a lease while it executes payouts. An operator resolves all but one of them meanwhile. */
export async function ownerIsPaused(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const sandbox = await openSandbox();
  // A process that is stopped within a commit of SQLite would hold its lock.
  const config = configFor(sandbox, {
    ...onRedis(await startRedis()),
    lock: { leaseMs: LEASE_MS },
    upstream: PATIENT,
  });
  const paused = await startGateway(config);
  const other = await openGateway(config);
  onTestFinished(async () => {
    await Promise.all([paused.end('SIGKILL'), other.shutdown()]);
  });
  await watch.add(paused, other);

  const resolved = [randomUUID(), randomUUID(), randomUUID()];
  const left = randomUUID();
  const keys = [...resolved, left];
  const payouts = await Promise.all(
    keys.map((key) => executing(sandbox, key, () => withdraw(paused.url, { key, fault: HELD }))),
  );
  paused.child.kill('SIGSTOP');
  const resolution = { as: 'completed' as const, by: 'ada', reason: 'in the books', status: 201 };
  const { desk } = other.gateway;
  for (const key of resolved) {
    const question = { kind: 'resolve' as const, scope: scopeOf('M-ALPHA', key), ...resolution };
    await until(async () => (await desk.answer(question)).kind === 'found', WITHIN_MS);
  }
  paused.child.kill('SIGCONT');
  // One after the other, so that counters grow between scrapes.
  const endDelays = keepOn(3000, async (times) => sandbox.endDelays(keys[times] ?? ''));
  onTestFinished(endDelays);
  await watch.fire('OncegateLeaseLost', 'OncegateStaleWrites');
  // The paused owner completes its own key, and so heals it.
  for (const { answer } of payouts) await answer;
  await endDelays();
  await watch.clear('OncegateLeaseLost', 'OncegateStaleWrites');
  expect((await withdraw(other.url, { key: left })).headers['idempotent-replayed']).toBe('true');
}

/** A replica stops receiving what the master writes, and the clock of the master is stepped. */
export async function replicasFallBehind(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const master = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
  const wire = await startProxy(master.port);
  await startRedis({ args: ['--replicaof', '127.0.0.1', `${wire.port}`] });
  await until(async () => /slave0:.*state=online/.test(await master.admin.info('replication')));
  // The replica counts after its first acknowledgement, which may take a second.
  await master.admin.set('warm', '1');
  await master.admin.wait(1, 0);
  const sandbox = await openSandbox();
  const config = configFor(sandbox, {
    store: { kind: 'redis', url: master.url, timeoutMs: 2000, durability: { replicas: 1 } },
    upstream: PATIENT,
  });
  // The gateway compares Redis' clock with its own, so that a shift of the second looks like a step of the first.
  let shiftMs = 0;
  const clock = { ...systemClock, monotonicMs: () => systemClock.monotonicMs() + shiftMs };
  const gateway = await openGateway(config, clock);
  onTestFinished(() => gateway.shutdown());
  await watch.add(gateway);
  const stopAsking = keepOn(500, () => send(gateway.adminUrl, { path: '/readyz' }));
  onTestFinished(stopAsking);

  await until(async () => (await withdraw(gateway.url, { key: randomUUID() })).status === 201, WITHIN_MS);
  const key = randomUUID();
  const { answer } = await executing(sandbox, key, () => withdraw(gateway.url, { key, fault: HELD }));
  wire.swallowReplication(true);
  sandbox.endDelays(key);
  await watch.fire('OncegateCompleteUnreplicated');
  wire.swallowReplication(false);
  expect((await answer).status).toBe(201);
  await watch.clear('OncegateCompleteUnreplicated');

  const stop = keepOn(1000, async () => {
    shiftMs += 5000;
  });
  await watch.fire('OncegateStoreClockStepped');
  await stop();
  await watch.clear('OncegateStoreClockStepped');
}

const { bavail, bsize } = statfsSync(tmpdir());
const FREE = bavail * bsize;
/** Much more than other processes of this machine take meanwhile. */
const SHARE = Math.floor(FREE / 8 / MIB) * MIB;

/** Limits of this disk. See {@link diskFills}. */
export const DISK = {
  '< 1073741824': `< ${FREE - SHARE}`,
  '(oncegate_store_disk_free_bytes) < 268435456': `(oncegate_store_disk_free_bytes) < ${FREE - 1.5 * SHARE}`,
  // After a reader has gone, SQLite shortens the WAL to 64 MiB.
  '(oncegate_sqlite_wal_bytes) > 268435456': `(oncegate_sqlite_wal_bytes) > ${66 * MIB}`,
};

/** Something else fills the disk, and a reader keeps SQLite from emptying its WAL. */
export async function diskFills(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const stack = await openStack();
  onTestFinished(() => stack.close());
  const { path } = stack.config.store as { path: string };
  const folder = newFolder();
  await watch.add(stack);
  const filler = join(folder, 'filler');
  onTestFinished(() => rmSync(filler, { force: true }));
  execFileSync('fallocate', ['--length', `${2 * SHARE}`, filler]);
  await watch.fire('OncegateDiskSpaceLow', 'OncegateDiskAlmostFull');
  rmSync(filler);
  await watch.clear('OncegateDiskSpaceLow', 'OncegateDiskAlmostFull');

  const reader = new DatabaseSync(join(path, 'records.db'), { readOnly: true });
  reader.exec('BEGIN');
  reader.prepare('SELECT count(*) FROM records').get();
  const payHuge = () => withdraw(stack.url, { key: randomUUID(), fault: 'huge=1000000' });
  for (let round = 0; round < 5; round++) await Promise.all(Array.from({ length: 16 }, payHuge));
  await watch.fire('OncegateWalGrows');
  reader.close();
  for (let round = 0; round < 2; round++) expect((await payHuge()).status).toBe(201);
  await watch.clear('OncegateWalGrows');
}
