import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { layout } from '../../../src/idempotency/stores/redis/codec.ts';
import { thisBuild } from '../../../src/kernel/build.ts';
import { withdraw } from '../../support/client.ts';
import { FAST_START, newFolder, run } from '../../support/command.ts';
import { type ConfigInput, type MoreConfig, testConfig } from '../../support/config.ts';
import { openStore, type StorePlace } from '../../support/open-store.ts';
import { killAfterTests } from '../../support/process-life.ts';
import { startRedis } from '../../support/redis-server.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { query } from '../../support/sqlite-files.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { openSandbox } from '../process/gateways.ts';

const sandbox = await openSandbox();
const { version } = thisBuild();

/** A configuration in a folder of its own. */
function newSite(more: MoreConfig = {}) {
  const folder = newFolder();
  const config: ConfigInput = testConfig(folder, sandbox.url, more);
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(config));
  const command = (...args: string[]) => run([...args, '--config', file]);
  return {
    ...{ folder, config, file, command, data: join(folder, 'data') },
    /** The document of `check --json`. */
    async check() {
      return JSON.parse((await command('check', '--json')).stdout);
    },
    async start() {
      const gateway = await spawnGateway(config, FAST_START, folder);
      killAfterTests(gateway.pid);
      return gateway;
    },
  };
}

/** Marks a store as a gateway of that version does at its start. */
async function usedBy(place: StorePlace, by: string): Promise<void> {
  const store = await openStore(place);
  await store.mark('protect', by);
  await store.close();
}

describe('a store of another format', () => {
  it('in SQLite is refused by a start, by check and by commands, which name it and the way out', async () => {
    const site = newSite();
    await usedBy({ kind: 'sqlite', path: site.data }, '2.0.0');
    query(site.data, 'PRAGMA user_version = 3');
    const bytes = readFileSync(join(site.data, 'records.db'));
    const why =
      /^oncegate: the store in .* has schema version 3, and this gateway knows version 2: use a gateway version that knows it, or configure another store\.path/;
    const ends = await Promise.all([
      site.command('serve'),
      site.command('check'),
      site.command('records', 'list'),
    ]);
    expect(ends.map(({ code }) => code)).toEqual([69, 1, 69]);
    for (const { stderr } of ends) expect(stderr).toMatch(why);
    expect(await site.check()).toMatchObject({
      ok: false,
      upgrade: { version, store: { format: 3, writes: 2, change: 'refused', needsAttention: true } },
    });
    expect(readFileSync(join(site.data, 'records.db'))).toEqual(bytes);
  });

  it('in Redis, as version 0.1.0 wrote it, pays nothing again: it is refused, which names the way out', async () => {
    const redis = await startRedis();
    const site = newSite(onRedis(redis));
    // Version 0.1.0 had this name for the record of a key.
    await redis.admin.set(`oncegate:{${scopeOf('M-ALPHA', 'paid-before')}}`, 'a record', 'PX', 86_400_000);
    const why =
      /^oncegate: redis has records of format 1 under the prefix oncegate, and this gateway knows format 2: stop the gateways of version 0\.1\.0/;
    const ends = await Promise.all([site.command('serve'), site.command('check')]);
    expect(ends.map(({ code }) => code)).toEqual([69, 1]);
    for (const { stderr } of ends) expect(stderr).toMatch(why);
    expect((await site.check()).upgrade.store).toMatchObject({ format: 1, change: 'refused' });
    // The way out: the old records have expired.
    await redis.admin.flushall();
    expect((await site.command('check')).code).toBe(0);
    expect(await redis.admin.get('oncegate:format')).toBe('2');
  });

  it('of one record is refused by every reader of it, and it is not paid again', async () => {
    const redis = await startRedis();
    const site = newSite(onRedis(redis));
    const gateway = await site.start();
    const [key, other] = ['of-another-version', 'of-this-version'] as const;
    for (const each of [key, other]) expect((await withdraw(gateway.url, { key: each })).status).toBe(201);
    const scope = scopeOf('M-ALPHA', key);
    const name = `oncegate:v2:{${scope}}`;
    const record = (await redis.admin.getBuffer(name)) as Buffer;
    record[layout.version] = 3;
    await redis.admin.set(name, record, 'KEEPTTL');

    const retry = await withdraw(gateway.url, { key });
    expect(retry).toMatchObject({ status: 503 });
    expect(retry.json<{ error: { code: string } }>().error.code).toBe('store_unavailable');
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect((await withdraw(gateway.url, { key: other })).headers['idempotent-replayed']).toBe('true');

    const why = 'its format version is 3';
    const listed = await site.command('records', 'list');
    expect(listed.stdout).toMatch(new RegExp(`${why}.*${scope}`));
    const shown = await site.command('records', 'show', '--scope', scope);
    expect([shown.code, shown.stdout + shown.stderr]).toEqual([1, expect.stringContaining(why)]);
    const purged = await site.command('records', 'purge', '--merchant', 'M-ALPHA', '--reason', 'closed');
    expect(purged.stdout).toMatch(new RegExp(`left ${scope}.*${why}`));
    const next = newSite();
    const copied = await run(['records', 'copy', '--from', site.file, '--to', next.file]);
    expect(copied.code).not.toBe(0);
    expect(copied.stderr).toContain(scope);
    expect(await redis.admin.getBuffer(name)).toEqual(record);
    expect((await withdraw(gateway.url, { key })).status).toBe(503);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(await gateway.end()).toBe(0);
  });
});

describe('check says what an upgrade changes', () => {
  it.each(['sqlite', 'redis'] as const)('if another version used the store (%s)', async (kind) => {
    const redis = kind === 'redis' ? await startRedis() : undefined;
    const site = newSite(redis ? onRedis(redis) : {});
    const place: StorePlace = redis
      ? { kind: 'redis', url: redis.url, prefix: 'oncegate' }
      : { kind: 'sqlite', path: site.data };
    const notes = async () =>
      (await site.command('check')).stdout.split('\n').filter((line) => /^(note|warn store)/.test(line));

    expect((await site.check()).upgrade.store).toMatchObject({ change: 'new', lastUsedBy: null });
    await usedBy(place, '0.9.0');
    expect(await notes()).toEqual([
      `note store: last used by 0.9.0; this is ${version}: follow "Upgrade" in CHANGELOG.md`,
    ]);
    expect((await site.check()).upgrade.store).toMatchObject({ change: 'none', lastUsedBy: '0.9.0' });
    await usedBy(place, '99.0.0');
    expect(await notes()).toEqual([
      `warn store: last used by 99.0.0; this is ${version}, which is older by a major version: do not start it`,
    ]);
    // A gateway notes its own version when it listens.
    const gateway = await site.start();
    const mark = join(site.folder, 'gateway.store-mark.json');
    await until(() => existsSync(mark));
    expect(JSON.parse(readFileSync(mark, 'utf8'))).toMatchObject({ format: 1 });
    expect(await gateway.end()).toBe(0);
    expect(await notes()).toEqual([]);
    expect((await site.check()).upgrade.store).toMatchObject({ lastUsedBy: version, needsAttention: false });
  });

  it('if the configuration has options of version 0.1.0', async () => {
    const site = newSite();
    const old = {
      ...site.config,
      store: { kind: 'lmdb' },
      idempotency: { settleRetryMs: 2000 },
      shutdown: { settleMs: 1000 },
      operations: [
        { name: 'pay', match: { method: 'POST', path: '/pay', body: { a: 'b' }, unreadableBody: 'pass' } },
      ],
    };
    writeFileSync(site.file, stringify(old));
    const ended = await site.command('check', '--offline');
    expect(ended.code).toBe(78);
    for (const text of [
      'store.kind: "lmdb" is not allowed: .*the embedded store is now called sqlite',
      'idempotency.settleRetryMs: is not an option; it is now called completeRetryMs \\(line \\d+',
      'shutdown.settleMs: is not an option; it is now called completeMs',
      'operations\\[0\\].match.unreadableBody: is not an option; it was removed: such requests are forwarded',
    ])
      expect(ended.stderr).toMatch(new RegExp(text));
    expect((await site.check()).upgrade).toEqual({
      version,
      options: [
        { option: 'store.kind: lmdb', now: 'sqlite' },
        { option: 'idempotency.settleRetryMs', now: 'completeRetryMs' },
        { option: 'shutdown.settleMs', now: 'completeMs' },
        { option: 'operations[0].match.unreadableBody', now: null },
      ],
    });
    const accepted = { name: 'pay', match: { method: 'POST', path: '/pay', body: { a: 'b' } } };
    writeFileSync(site.file, stringify({ ...site.config, operations: [accepted] }));
    expect((await site.check()).upgrade.options).toEqual([
      { option: 'operations[0].match.body', now: 'where' },
    ]);
  });

  it('if the note of the store beside the configuration has another format, which is kept', async () => {
    const site = newSite();
    const mark = join(site.folder, 'gateway.store-mark.json');
    const later = JSON.stringify({ format: 2, store: 'something else' });
    writeFileSync(mark, later);
    const why = 'it has format 2, and this version knows format 1';
    expect((await site.check()).warnings).toContainEqual(expect.stringContaining(why));
    const gateway = await site.start();
    await until(() => query(site.data, 'SELECT marks FROM mark').length > 0);
    expect(await gateway.end()).toBe(0);
    expect(gateway.lines.join('\n')).toContain(why);
    expect(readFileSync(mark, 'utf8')).toBe(later);
  });
});
