import { randomUUID } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { acceptStore } from '../../../src/ledger/accept-store.ts';
import { measured } from '../../../src/ledger/measured.ts';
import { StoreWatch } from '../../../src/ledger/store-watch.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import { StoreUnavailable, VISIT_LASTS_MS } from '../../../src/store/types.ts';
import { Events } from '../../../src/telemetry/emit.ts';
import { withdraw } from '../../support/client.ts';
import { newFolder, run } from '../../support/command.ts';
import {
  type ConfigInput,
  configFile,
  type MoreConfig,
  replaceFile,
  testConfig,
} from '../../support/config.ts';
import { emitTo } from '../../support/emit.ts';
import { metric } from '../../support/metrics.ts';
import { emptied, type RedisServer, startRedis } from '../../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../../support/requests.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { query } from '../../support/sqlite-files.ts';
import { openSandbox, readiness } from '../../support/stack.ts';
import { type Started, startHere, warningsOf } from '../../support/started.ts';
import { onRedis, storeForTest } from '../../support/stores.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const sandbox = await openSandbox();

/** A configuration in a folder of its own, and what gateways and checks with it say about the store. */
class Site {
  readonly folder = newFolder();
  readonly identityFile = join(this.folder, 'gateway.store-identity.json');
  readonly data = join(this.folder, 'data');
  readonly config: ConfigInput;

  constructor(more: MoreConfig = {}) {
    this.config = testConfig(this.folder, sandbox.url, more);
  }

  /** Starts a gateway and waits until it has visited the store. */
  async start(more: MoreConfig = {}): Promise<Started> {
    const noted = () => (existsSync(this.identityFile) ? readFileSync(this.identityFile, 'utf8') : '');
    const before = noted();
    const gateway = await startHere({ ...this.config, ...more } as ConfigInput, this.folder);
    await until(() => noted() !== before);
    return gateway;
  }

  #command(...args: string[]) {
    const file = configFile(this.config, this.folder);
    return run([...args, '--config', file]);
  }

  async check(): Promise<string[]> {
    const { stdout } = await this.#command('check');
    return stdout.split('\n').filter((line) => /^(?:warn|FAIL) store: /.test(line));
  }

  accept(reason = 'the books were compared') {
    return this.#command('store', 'accept', '--reason', reason, '--by', 'ada');
  }
}

const readyWarnings = async (gateway: { adminUrl: string }) =>
  (await readiness(gateway)).check('store')?.warnings;

const storeWarnings = (gateway: Started) => warningsOf(gateway, 'store');

it('restarts, a kill, several gateways and checks are no change of the store', async () => {
  const site = new Site();
  expect(await site.check()).toEqual([]);
  // A check writes nothing.
  expect(existsSync(site.identityFile)).toBe(false);
  const killed = await spawnGateway(site.config, {}, { folder: site.folder });
  await until(() => existsSync(site.identityFile));
  const beside = await site.start();
  expect(await site.check()).toEqual([]);
  for (const gateway of [killed, beside]) expect(await readyWarnings(gateway)).toEqual([]);
  expect(await killed.end('SIGKILL')).toBe('SIGKILL');
  await beside.shutdown();
  expect(await site.check()).toEqual([]);
  expect(storeWarnings(await site.start())).toEqual([]);
});

it('a restored SQLite file is noticed by check, by the next start and on /readyz', async () => {
  const site = new Site();
  const first = await site.start();
  expect((await withdraw(first.url, { key: 'before' })).status).toBe(201);
  // It is younger than the gateway's first visit, and older than its last.
  const backup = newFolder();
  query(site.data, `VACUUM INTO '${join(backup, 'records.db')}'`);
  expect((await withdraw(first.url, { key: 'lost' })).status).toBe(201);
  await first.shutdown();

  rmSync(site.data, { recursive: true });
  cpSync(backup, site.data, { recursive: true });
  const older = /the store is older than it was: it was restored from a backup, .*can be paid again/;
  expect(await site.check()).toEqual([
    expect.stringMatching(/^FAIL store: the store is older .* until an operator accepts it/),
    expect.stringMatching(older),
  ]);
  const third = await site.start();
  expect(storeWarnings(third)).toEqual([expect.stringMatching(older)]);
  const { status, check } = await readiness(third);
  expect([status, check('store')]).toMatchObject([503, { ok: false, detail: expect.stringMatching(older) }]);
  const count = () => query(site.data, 'SELECT marks FROM store')[0]?.marks;
  const before = count();
  // What the refusal says: the backup knows the one key, and not the other.
  expect((await withdraw(third.url, { key: 'before' })).headers['idempotent-replayed']).toBe('true');
  const refused = await withdraw(third.url, { key: 'lost' });
  expect([refused.status, codeOf(refused)]).toEqual([503, 'store_unavailable']);
  expect(await metric(third.adminUrl, 'oncegate_store_forgot')).toBe(1);
  await third.shutdown();
  // A second start does not hide it, and the store's count does not grow meanwhile. Nor would it help.
  expect(count()).toBe(before);
  query(site.data, 'UPDATE store SET marks = 1000');
  const fourth = await startHere(site.config, site.folder);
  expect((await withdraw(fourth.url, { key: 'lost' })).status).toBe(503);
  expect(sandbox.ledger.payouts({ key: 'lost' })).toBe(1);

  for (const reason of ['x'.repeat(501), 'two\nlines'])
    expect(await site.accept(reason)).toMatchObject({
      code: 64,
      stderr: expect.stringContaining('reason must say why, in one line of at most 500 characters'),
    });
  expect(await site.accept()).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(/^accepted: the store is older/),
  });
  await until(() => fourth.log.some(({ msg }) => msg === 'the store was accepted'));
  expect(fourth.log).toContainEqual(
    expect.objectContaining({ by: 'ada', reason: 'the books were compared' }),
  );
  expect((await withdraw(fourth.url, { key: 'lost' })).status).toBe(201);
  expect((await readiness(fourth)).status).toBe(200);
  expect(await metric(fourth.adminUrl, 'oncegate_store_forgot')).toBe(0);
  await fourth.shutdown();
  expect(await site.check()).toEqual([]);
  expect(JSON.parse(readFileSync(site.identityFile, 'utf8')).accepted).toMatchObject({ by: 'ada' });
  expect(await site.accept()).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('nothing to accept'),
  });
});

it('the newer store is refused if it is put back after the older one was accepted: it lacks what was paid since', async () => {
  const site = new Site();
  const first = await site.start();
  const [backup, newer] = [newFolder(), newFolder()];
  query(site.data, `VACUUM INTO '${join(backup, 'records.db')}'`);
  // The newer store has more visits than the older one will have when it is put back.
  query(site.data, 'UPDATE store SET marks = 1000');
  await first.shutdown();
  const put = (folder: string) => {
    rmSync(site.data, { recursive: true });
    cpSync(folder, site.data, { recursive: true });
  };
  cpSync(site.data, newer, { recursive: true });
  put(backup);
  expect((await site.accept()).code).toBe(0);
  const second = await site.start();
  expect((await withdraw(second.url, { key: 'since' })).status).toBe(201);
  await second.shutdown();

  put(newer);
  const third = await site.start();
  expect((await withdraw(third.url, { key: 'since' })).status).toBe(503);
  expect(sandbox.ledger.payouts({ key: 'since' })).toBe(1);
});

it('a gateway that had the wrong store by mistake leaves the id of the right one, which others use', async () => {
  const site = new Site();
  const store = { kind: 'sqlite', path: site.data } as const;
  const other = new Site({ store });
  await (await site.start()).shutdown();
  await (await other.start()).shutdown();
  const mistaken = await startHere({ ...site.config, store: { ...store, path: newFolder() } }, site.folder);
  expect((await readiness(mistaken)).status).toBe(503);
  await mistaken.shutdown();

  const refusing = await startHere(site.config, site.folder);
  expect((await withdraw(refusing.url, { key: 'mistaken' })).status).toBe(503);
  expect((await site.accept()).code).toBe(0);
  await until(async () => (await withdraw(refusing.url, { key: 'mistaken' })).status === 201);
  expect(await other.check()).toEqual([]);
});

it('a store that was restored is a warning while a gateway observes, and with durability.mayLoseOnFailover', async () => {
  const redis = await startRedis();
  const { store } = onRedis(redis);
  const durability = { mayLoseOnFailover: true };
  const lenient = [
    { store: { ...store, durability } },
    { store, idempotency: { mode: 'observe' } },
  ] as MoreConfig[];
  for (const [i, more] of lenient.entries()) {
    const site = new Site(more);
    await (await site.start()).shutdown();
    await redis.admin.flushall();
    const gateway = await site.start();
    expect((await readiness(gateway)).status).toBe(200);
    expect(await readyWarnings(gateway)).toContainEqual(
      expect.stringMatching(/^the store is new or was emptied;/),
    );
    expect((await withdraw(gateway.url, { key: `lenient-${i}` })).status).toBe(201);
    await gateway.shutdown();
  }
});

it('a Redis that comes back empty gets no start, because each new connection has to show the identity first', async () => {
  const redis = await startRedis();
  const wire = await startProxy(redis.port);
  const site = new Site(onRedis(wire));
  const gateway = await site.start();
  let isEmptied = false;
  let goOn = true;
  const statuses: Record<'before' | 'after', number[]> = { before: [], after: [] };
  const flood = Array.from({ length: 16 }, async () => {
    while (goOn) {
      const to = statuses[isEmptied ? 'after' : 'before'];
      to.push((await withdraw(gateway.url, { key: randomUUID() })).status);
    }
  });
  await until(() => statuses.before.includes(201));
  // Time for starts between the new connection and its identity.
  wire.delayReplies(300);
  await emptied(redis);
  isEmptied = true;
  await until(async () => (await metric(gateway.adminUrl, 'oncegate_store_forgot')) === 1);
  goOn = false;
  wire.delayReplies(0);
  await Promise.all(flood);
  expect(new Set(statuses.after)).toEqual(new Set([503]));
  expect(gateway.log).toContainEqual(expect.objectContaining({ msg: 'the store has changed' }));
  expect((await readiness(gateway)).status).toBe(503);
  expect((await site.accept()).code).toBe(0);
  await until(async () => (await withdraw(gateway.url, { key: 'accepted' })).status === 201);
});

it('a Redis that is emptied again after it was accepted is refused again', async () => {
  const redis = await startRedis();
  const site = new Site(onRedis(redis));
  await (await site.start()).shutdown();
  await redis.admin.flushall();
  // An operator may be another user than the gateway, which must be able to read the acceptance.
  const umask = process.umask(0o077);
  expect((await site.accept()).code).toBe(0);
  process.umask(umask);
  expect(statSync(site.identityFile).mode & 0o777).toBe(0o644);
  const gateway = await site.start();
  expect((await withdraw(gateway.url, { key: randomUUID() })).status).toBe(201);
  const forgets = async () =>
    await until(async () => (await metric(gateway.adminUrl, 'oncegate_store_forgot')) === 1);
  await emptied(redis);
  await forgets();
  expect((await site.accept()).code).toBe(0);
  await emptied(redis);
  await until(() => gateway.log.some(({ msg }) => msg === 'the store was accepted'));
  await forgets();
  expect((await withdraw(gateway.url, { key: randomUUID() })).status).toBe(503);
});

it('starts and restarts are not sent to a store that is refused, whoever asks', async () => {
  const store = await storeForTest({ kind: 'sqlite', path: newFolder() });
  let refusal: string | undefined;
  const refusing = measured(store, systemClock, emitTo({}), () => refusal);
  const owner = newRequest();
  await refusing.start(owner);
  await refusing.leaveInDoubt(owner);
  refusal = 'it has forgotten keys';
  expect(refusing.refusing).toBe(refusal);
  await expect(refusing.start(newRequest())).rejects.toMatchObject({ message: refusal, maybeWritten: false });
  await expect(refusing.restart(duplicateOf(owner))).rejects.toMatchObject({
    message: refusal,
    maybeWritten: false,
  });
  expect(await store.get(owner.recordId)).toMatchObject({ state: 'in_doubt' });
  expect(await refusing.complete(owner, paid())).toBe('ok');
});

it('a Redis that is emptied while a gateway runs is noticed at the next visit, and logged once', async () => {
  const redis = await startRedis();
  const store = await storeForTest({ kind: 'redis', url: redis.url, prefix: 'oncegate' });
  const log: object[] = [];
  const logger = pino({ base: null }, { write: (line: string) => log.push(JSON.parse(line)) });
  const watch = await StoreWatch.open({ ...watchOptions(), store, emit: new Events(logger).emit });
  const visitThrice = async () => {
    for (let visits = 0; visits < 3; visits++) await watch.visit();
  };
  await visitThrice();
  expect([log, watch.warnings]).toEqual([[], []]);
  await redis.admin.flushall();
  await visitThrice();
  const emptied = expect.stringMatching(/the store is new or was emptied;/);
  expect(log).toMatchObject([{ level: 50, msg: 'the store has changed', warning: emptied }]);
  expect(watch.warnings).toEqual([emptied]);
  // While Redis is away, nothing is known, and nothing is said.
  await redis.kill();
  await watch.visit();
  expect(log).toHaveLength(1);
});

/** The options of a watch, apart from its store. */
const watchOptions = (file = join(newFolder(), 'identity.json')) => ({
  ...{ file, mode: 'protect' as const, refuses: true, warnForMs: 60_000 },
  ...{ clock: systemClock, emit: emitTo({}) },
});

it('a promoted replica that lacks a visit which the old master could not replicate is the same store', async () => {
  const primary = await startRedis({ args: ['--repl-diskless-sync-delay', '0'] });
  const replica = await startRedis({ args: ['--replicaof', '127.0.0.1', `${primary.port}`] });
  // The replica counts after its first acknowledgement, which may take a second.
  await primary.admin.set('warm', '1');
  await until(async () => (await primary.admin.wait(1, 100)) === 1);
  const openOn = ({ url }: RedisServer, replicas: number) =>
    storeForTest({ kind: 'redis', url, prefix: 'test', replicas }, { timeoutMs: 2000 });
  const options = watchOptions();
  const watch = await StoreWatch.open({ ...options, store: await openOn(primary, 1) });
  await watch.visit();
  await replica.admin.replicaof('NO', 'ONE');
  // Each of these counts on the master, and fails because no replica acknowledges it.
  for (let visits = 0; visits < 2; visits++) await watch.visit();
  const promoted = await StoreWatch.open({ ...options, store: await openOn(replica, 0) });
  expect([promoted.refusal, promoted.warnings]).toEqual([undefined, []]);
});

/** A watch that has visited its store, and the text of its file in which another gateway has noted a refusal. */
async function visitedOnce() {
  const store = await storeForTest({ kind: 'sqlite', path: newFolder() });
  const options = { ...watchOptions(), store };
  const { file } = options;
  const watch = await StoreWatch.open(options);
  await watch.visit();
  expect(watch.refusal).toBeUndefined();
  const changed = { at: new Date().toISOString(), what: 'the store is older than it was' };
  const refusal = JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), changed });
  return { file, options, watch, changed, refusal };
}

it('a refusal that another gateway has noted in the file is kept, and holds for all', async () => {
  const { file, watch, changed, refusal } = await visitedOnce();
  writeFileSync(file, refusal);
  await watch.visit();
  expect(`${watch.refusal}`).toMatch(/^the store is older than it was/);
  expect(JSON.parse(readFileSync(file, 'utf8')).changed).toEqual(changed);
});

it('an acceptance is not lost if a gateway writes its refusal at the same moment', async () => {
  const { file, watch, changed, refusal, options } = await visitedOnce();
  writeFileSync(file, refusal);
  const accepting = acceptStore(options, { by: 'ada', reason: 'the books were compared' });
  await until(() => readFileSync(file, 'utf8').includes('accepted'));
  writeFileSync(file, refusal);
  expect(await accepting).toBe(changed.what);
  await watch.visit();
  expect(watch.refusal).toBeUndefined();
  expect(JSON.parse(readFileSync(file, 'utf8')).accepted).toMatchObject({ by: 'ada' });
});

it('an acceptance waits for every master to show the identity, because its visit would hide that one was emptied', async () => {
  const { file, refusal, options } = await visitedOnce();
  writeFileSync(file, refusal);
  const before = await options.store.readIdentity('protect');
  const store = Object.create(options.store, {
    readIdentity: { value: async () => ({ ...before, unread: ['a master'] }) },
  });
  const accepting = acceptStore({ ...options, store }, { by: 'ada', reason: 'the books were compared' });
  await expect(accepting).rejects.toBeInstanceOf(StoreUnavailable);
  expect(await options.store.readIdentity('protect')).toEqual(before);
  expect(readFileSync(file, 'utf8')).toBe(refusal);
});

it('of two operators who accept at once, the later one stays in the file, and both commands end', async () => {
  const { file, refusal, options } = await visitedOnce();
  const accepting = (by: string) => acceptStore(options, { by, reason: 'the books were compared' });
  const by = () => JSON.parse(readFileSync(file, 'utf8')).accepted?.by;
  writeFileSync(file, refusal);
  const first = accepting('ada');
  await until(() => by() === 'ada');
  // As if the second one had read the file before.
  replaceFile(file, refusal);
  const second = accepting('grace');
  await until(() => by() === 'grace');
  await first;
  expect(by()).toBe('grace');
  await second;
  expect(by()).toBe('grace');
});

it('an acceptance for a gateway that observes leaves the id of the store to those that protect, and is the last one', async () => {
  const { options, watch } = await visitedOnce();
  const lenient = { ...options, mode: 'observe' as const, refuses: false };
  const observing = [watchOptions(), watchOptions()].map(({ file }) => ({ ...lenient, file }));
  const before = await options.store.readIdentity('protect');
  for (const each of observing) {
    // It has seen another store before this one.
    const mark = { id: 'f'.repeat(32), count: 1 };
    writeFileSync(each.file, JSON.stringify({ format: 1, mark, seenAt: new Date().toISOString() }));
    await (await StoreWatch.open(each)).visit();
  }
  const note = { by: 'ada', reason: 'the books were compared' };
  for (const each of observing) expect(await acceptStore(each, note)).toMatch(/is not the one/);
  for (const each of observing) expect(await acceptStore(each, note)).toBeUndefined();
  expect((await options.store.readIdentity('protect'))?.id).toBe(before?.id);
  await watch.visit();
  expect(watch.refusal).toBeUndefined();
});

it('gateways in both modes on one store are warned about, also when one of them has ended', async () => {
  const redis = await startRedis();
  const site = new Site(onRedis(redis));
  const uses = (mode: string) =>
    expect.stringMatching(new RegExp(`^a gateway with idempotency\\.mode: ${mode} uses this store`));
  await site.start();
  const observes = await site.start({ idempotency: { mode: 'observe' } });
  expect(storeWarnings(observes)).toContainEqual(uses('protect'));
  await observes.shutdown();
  expect(storeWarnings(await site.start())).toContainEqual(uses('observe'));
  // The note of the last gateway that leaves expires after this time.
  const [noted] = await redis.admin.keys('*mark*:observe');
  expect(await redis.admin.pttl(noted as string)).toSatisfy((ms) => ms > 0 && ms <= VISIT_LASTS_MS);
});

it('a note that cannot be written, read or understood is a warning, and one of another format is kept', async () => {
  const site = new Site();
  const store = { kind: 'sqlite' as const, path: site.data, timeoutMs: 5000 };
  const identityFile = '/proc/oncegate/identity.json';
  const unwritable = await startHere({ ...site.config, store: { ...store, identityFile } }, newFolder());
  expect((await withdraw(unwritable.url, { key: 'read-only' })).status).toBe(201);
  expect(storeWarnings(unwritable)).toEqual([
    expect.stringMatching(
      /^\/proc\/oncegate\/identity\.json cannot be written \(ENOENT\), so .* not noticed/,
    ),
  ]);
  await unwritable.shutdown();

  // As after a failed mount, or on a full disk: what cannot be put in place is removed again.
  mkdirSync(site.identityFile);
  const opened = await storeForTest({ kind: 'sqlite', path: site.data });
  const watch = await StoreWatch.open({ ...watchOptions(site.identityFile), store: opened });
  await watch.visit();
  expect(watch.warnings).toEqual([expect.stringMatching(/cannot be written \(EISDIR\)/)]);
  expect(readdirSync(site.folder).filter((name) => name.includes('store-identity'))).toEqual([
    'gateway.store-identity.json',
  ]);
  rmSync(site.identityFile, { recursive: true });

  writeFileSync(site.identityFile, '{"mark":');
  const replacing = await site.start();
  expect(storeWarnings(replacing)).toEqual([expect.stringMatching(/cannot be read \(it is not valid\)/)]);
  await replacing.shutdown();
  expect(await site.check()).toEqual([]);

  const later = JSON.stringify({ format: 2, store: 'something else' });
  writeFileSync(site.identityFile, later);
  const why = 'it has format 2, and this version knows format 1';
  expect(await site.check()).toEqual([expect.stringContaining(why)]);
  const visits = () => query(site.data, 'SELECT marks FROM store')[0]?.marks as number;
  const before = visits();
  const gateway = await startHere(site.config, site.folder);
  await until(() => visits() > before);
  expect(storeWarnings(gateway)).toEqual([expect.stringContaining(why)]);
  await gateway.shutdown();
  expect(readFileSync(site.identityFile, 'utf8')).toBe(later);
});
