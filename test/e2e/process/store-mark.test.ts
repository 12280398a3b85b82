import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, it, onTestFinished } from 'vitest';
import { stringify } from 'yaml';
import { StoreWatch } from '../../../src/gateway/store-watch.ts';
import { MARK_LASTS_MS, type Store } from '../../../src/idempotency/store.ts';
import { systemClock } from '../../../src/kernel/clock.ts';
import { send, withdraw } from '../../support/client.ts';
import { FAST_START, newFolder, run } from '../../support/command.ts';
import { type ConfigInput, type MoreConfig, testConfig } from '../../support/config.ts';
import { openStore } from '../../support/open-store.ts';
import { killAfterTests } from '../../support/process-life.ts';
import { startRedis } from '../../support/redis-server.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { openSandbox } from './gateways.ts';

const sandbox = await openSandbox();

/** A configuration in a folder of its own, and what gateways and checks with it say about the store. */
class Site {
  readonly folder = newFolder();
  readonly mark = join(this.folder, 'gateway.store-mark.json');
  readonly config: ConfigInput;

  constructor(more: MoreConfig = {}) {
    this.config = testConfig(this.folder, sandbox.url, more);
  }

  get data(): string {
    return join(this.folder, 'data');
  }

  /** Starts a gateway and waits until it has marked the store. */
  async start(more: MoreConfig = {}): Promise<SpawnedGateway> {
    const before = existsSync(this.mark) ? readFileSync(this.mark, 'utf8') : '';
    const config = { ...this.config, ...more } as ConfigInput;
    const gateway = await spawnGateway(config, FAST_START, this.folder);
    killAfterTests(gateway.pid);
    await until(() => existsSync(this.mark) && readFileSync(this.mark, 'utf8') !== before);
    return gateway;
  }

  async check(): Promise<string[]> {
    writeFileSync(join(this.folder, 'gateway.yaml'), stringify(this.config));
    const { stdout } = await run(['check', '--config', join(this.folder, 'gateway.yaml')]);
    return stdout.split('\n').filter((line) => line.startsWith('warn store: '));
  }

  async readyWarnings({ adminUrl }: SpawnedGateway): Promise<string[]> {
    const { checks } = (await send(adminUrl, { path: '/readyz' })).json<{
      checks: { name: string; warnings?: string[] }[];
    }>();
    return checks.find(({ name }) => name === 'store')?.warnings ?? [];
  }
}

const warningsIn = ({ lines }: SpawnedGateway): string[] =>
  lines
    .map((line) => JSON.parse(line))
    .filter(({ level }) => level === 'warn' || level === 'error')
    .map(({ warning }) => warning ?? '')
    .filter((warning) => warning.startsWith('store: '));

it('restarts, a kill, several gateways, workers and checks are no change of the store', async () => {
  const site = new Site();
  expect(await site.check()).toEqual([]);
  // A check writes nothing.
  expect(existsSync(site.mark)).toBe(false);
  const first = await site.start();
  expect(await site.check()).toEqual([]);
  const beside = await site.start({ workers: 2 });
  for (const gateway of [first, beside]) expect(await site.readyWarnings(gateway)).toEqual([]);
  await first.end('SIGKILL');
  expect(await beside.end()).toBe(0);
  expect(await site.check()).toEqual([]);
  for (const gateway of [first, beside]) expect(warningsIn(gateway)).toEqual([]);
}, 60_000);

it('a restored SQLite file is noticed by check, by the next start and on /readyz', async () => {
  const site = new Site();
  const first = await site.start();
  expect((await withdraw(first.url, { key: 'before' })).status).toBe(201);
  await first.end();
  const backup = newFolder();
  cpSync(site.data, backup, { recursive: true });
  const second = await site.start();
  expect((await withdraw(second.url, { key: 'lost' })).status).toBe(201);
  await second.end();

  rmSync(site.data, { recursive: true });
  cpSync(backup, site.data, { recursive: true });
  const older = /store: the store is older than it was: it was restored from a backup, .*can be paid again/;
  expect(await site.check()).toEqual([expect.stringMatching(older)]);
  const third = await site.start();
  expect(warningsIn(third)).toEqual([expect.stringMatching(older)]);
  expect(await site.readyWarnings(third)).toEqual([expect.stringMatching(/^the store is older than it was/)]);
  // What the warning says: the backup knows the one key, and not the other.
  expect((await withdraw(third.url, { key: 'before' })).headers['idempotent-replayed']).toBe('true');
  expect((await withdraw(third.url, { key: 'lost' })).headers).not.toHaveProperty('idempotent-replayed');
  expect(sandbox.ledger.payouts({ key: 'before' })).toBe(1);
  expect(sandbox.ledger.payouts({ key: 'lost' })).toBe(2);
  expect(await third.end()).toBe(0);
  // The warning stays for retentionMs, so that a second start does not hide it.
  const fourth = await site.start({ workers: 2 });
  expect(warningsIn(fourth)).toEqual([expect.stringMatching(older)]);
  expect(await fourth.end()).toBe(0);
  const noted = JSON.parse(readFileSync(site.mark, 'utf8'));
  noted.changed.at = new Date(Date.now() - 86_400_000).toISOString();
  writeFileSync(site.mark, JSON.stringify(noted));
  expect(await site.check()).toEqual([]);
}, 60_000);

it('an emptied folder of SQLite is noticed, and so is another one', async () => {
  const site = new Site();
  await (await site.start()).end();
  rmSync(site.data, { recursive: true });
  expect(await site.check()).toEqual([expect.stringMatching(/store: the store is new or was emptied;/)]);
  const path = join(site.folder, 'other');
  const other = new Site();
  await (await other.start()).end();
  cpSync(other.data, path, { recursive: true });
  const gateway = await site.start({ store: { kind: 'sqlite', path, timeoutMs: 5000 } });
  expect(warningsIn(gateway)).toEqual([expect.stringMatching(/store: the store is not the one that was/)]);
  expect(await gateway.end()).toBe(0);
});

it('an emptied Redis is noticed at the next start', async () => {
  const redis = await startRedis();
  const site = new Site(onRedis(redis));
  await (await site.start()).end();
  const unchanged = await site.start();
  expect(warningsIn(unchanged)).toEqual([]);
  await unchanged.end();
  await redis.restart();
  expect(await site.check()).toEqual([]);
  await redis.admin.flushall();
  expect(await site.check()).toEqual([expect.stringMatching(/store: the store is new or was emptied;/)]);
  const gateway = await site.start();
  expect(warningsIn(gateway)).toEqual([
    expect.stringMatching(/^store: the store is new or was emptied; keys that it has forgotten/),
  ]);
  expect(await gateway.end()).toBe(0);
});

/** A watch, and the lines that it logs. */
async function openWatch(store: Store): Promise<{ watch: StoreWatch; log: object[] }> {
  const log: object[] = [];
  const logger = pino({ base: null }, { write: (line: string) => log.push(JSON.parse(line)) });
  const file = join(newFolder(), 'mark.json');
  const options = { file, store, mode: 'protect' as const, warnForMs: 60_000, clock: systemClock, logger };
  return { watch: await StoreWatch.open(options), log };
}

it('a Redis that is emptied while a gateway runs is noticed at its next mark, and logged once', async () => {
  const redis = await startRedis();
  const store = await openStore({ kind: 'redis', url: redis.url, prefix: 'oncegate' });
  onTestFinished(() => store.close());
  const { watch, log } = await openWatch(store);
  for (let marks = 0; marks < 3; marks++) await watch.mark();
  expect([log, watch.warnings]).toEqual([[], []]);
  await redis.admin.flushall();
  for (let marks = 0; marks < 3; marks++) await watch.mark();
  const emptied = expect.stringMatching(
    /the store is not the one that was used before: .* or it was emptied;/,
  );
  expect(log).toEqual([
    expect.objectContaining({ level: 50, msg: 'the store has changed', warning: emptied }),
  ]);
  expect(watch.warnings).toEqual([emptied]);
  // While Redis is away, nothing is known, and nothing is said.
  await redis.kill();
  await watch.mark();
  expect(log).toHaveLength(1);
});

it('a mark of another format is kept, and logged once by a gateway that runs', async () => {
  const redis = await startRedis();
  const store = await openStore({ kind: 'redis', url: redis.url, prefix: 'oncegate' });
  onTestFinished(() => store.close());
  const { watch, log } = await openWatch(store);
  await watch.mark();
  await redis.admin.set('oncegate:v2:{mark}', 'a mark of another version');
  for (let marks = 0; marks < 3; marks++) await watch.mark();
  const foreign = expect.stringMatching(/the mark of the store has the format of another version/);
  expect(log).toMatchObject([{ level: 40, msg: 'something needs attention', warning: foreign }]);
  expect(watch.warnings).toEqual([foreign]);
  expect(await redis.admin.get('oncegate:v2:{mark}')).toBe('a mark of another version');
});

it('gateways in both modes on one store are warned about, also when one of them has ended', async () => {
  const redis = await startRedis();
  const site = new Site(onRedis(redis));
  const protects = await site.start();
  const observes = await site.start({ idempotency: { mode: 'observe' } });
  expect(warningsIn(observes)).toContainEqual(
    expect.stringMatching(/^store: a gateway with idempotency\.mode: protect uses this store/),
  );
  const other = await site.start({ idempotency: { mode: 'observe' } });
  expect(await other.end()).toBe(0);
  const again = await site.start();
  expect(warningsIn(again)).toContainEqual(
    expect.stringMatching(/^store: a gateway with idempotency\.mode: observe uses this store/),
  );
  // The last one that leaves is forgotten after this time.
  const [noted] = await redis.admin.keys('*mark*:observe');
  expect(await redis.admin.pttl(noted as string)).toSatisfy((ms) => ms > 0 && ms <= MARK_LASTS_MS);
  for (const gateway of [protects, observes, again]) expect(await gateway.end()).toBe(0);
});

it('a folder that cannot be written is a warning, and a broken mark file too', async () => {
  const site = new Site();
  const store = { kind: 'sqlite' as const, path: site.data, timeoutMs: 5000 };
  const config = { ...site.config, store: { ...store, markFile: '/proc/oncegate/mark.json' } };
  const gateway = await spawnGateway(config, FAST_START, site.folder);
  killAfterTests(gateway.pid);
  expect((await withdraw(gateway.url, { key: 'read-only' })).status).toBe(201);
  expect(warningsIn(gateway)).toEqual([
    expect.stringMatching(
      /^store: \/proc\/oncegate\/mark\.json cannot be written \(ENOENT\), so .* not noticed/,
    ),
  ]);
  expect(await gateway.end()).toBe(0);

  writeFileSync(site.mark, '{"mark":');
  const replacing = await site.start();
  expect(warningsIn(replacing)).toEqual([expect.stringMatching(/cannot be read \(it is not valid\)/)]);
  expect(await replacing.end()).toBe(0);
  expect(await site.check()).toEqual([]);
});
