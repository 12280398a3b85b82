/** Running time across reboots: downtime does not count, and owners of an earlier boot are dead. */
import { spawnSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { bootId } from '../../src/store/sqlite/running-time.ts';
import { duplicateOf, newRequest } from '../support/requests.ts';
import { openSqlite, query, RemoteStore, storeFolder } from '../support/sqlite-files.ts';
import { bring } from './states.ts';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const lease = { leaseMs: 10_000, retentionMs: HOUR_MS, inDoubtRetentionMs: 2 * HOUR_MS };

/** A machine whose boot and clocks are set by hand. */
function machine() {
  const bootIdFile = join(storeFolder(), 'boot_id');
  const self = {
    bootIdFile,
    clock: { ...systemClock, wallMs: () => self.wallMs, monotonicMs: () => self.monotonicMs },
    wallMs: 1.7e12,
    monotonicMs: 5_000_000,
    boots(id: string, monotonicMs: number) {
      writeFileSync(bootIdFile, id);
      self.monotonicMs = monotonicMs;
    },
    removesBootId: () => rmSync(bootIdFile, { force: true }),
  };
  self.boots('first', self.monotonicMs);
  return self;
}

function setUp() {
  const [path, host] = [storeFolder(), machine()];
  const open = () => openSqlite(path, { ...lease, clock: host.clock, bootIdFile: host.bootIdFile });
  return { path, host, open };
}

describe('within a boot', () => {
  it('records age by the monotonic clock, whatever the wall clock does', async () => {
    const { host, open } = setUp();
    const [store, other] = [await open(), await open()];
    const owner = await bring(store, 'executing');
    for (const jumpMs of [-DAY_MS, DAY_MS, 400 * DAY_MS]) {
      host.wallMs += jumpMs;
      expect(await other.peek(owner)).toEqual({ kind: 'in_flight' });
    }
    host.monotonicMs += lease.leaseMs - 1;
    expect(await other.peek(owner)).toEqual({ kind: 'in_flight' });
    host.monotonicMs += 1;
    for (const any of [other, await open()])
      expect(await any.peek(owner)).toMatchObject({ kind: 'in_doubt' });
    host.monotonicMs += lease.inDoubtRetentionMs;
    expect(await other.peek(owner)).toEqual({ kind: 'absent' });
  });
});

describe('in another boot', () => {
  it.each([10, 5_000_500, 90_000_000])(
    'whose monotonic clock begins at %i, running time continues, and owners of the earlier boot are dead',
    async (monotonicMs) => {
      const { host, open } = setUp();
      const store = await open();
      const [owner, completed] = [await bring(store, 'executing'), await bring(store, 'completed')];
      const doubtful = await bring(store, 'executing');
      await store.renew(doubtful);
      await store.leaveInDoubt(doubtful);
      // Written after the running time was last stored.
      host.monotonicMs += 900;
      const late = await bring(store, 'executing');
      await store.close();
      // Downtime does not count.
      host.wallMs += 400 * DAY_MS;
      host.boots('second', monotonicMs);
      const later = await open();
      for (const dead of [owner, late]) {
        expect(await later.peek(dead)).toMatchObject({ kind: 'in_doubt' });
        expect(await later.start(duplicateOf(dead))).toMatchObject({ kind: 'in_doubt' });
      }
      // Its second owner lives in this boot.
      expect(await later.restart(duplicateOf(doubtful))).toBe('ok');
      expect(await later.peek(doubtful)).toEqual({ kind: 'in_flight' });
      expect(await later.peek(completed)).toMatchObject({ kind: 'completed' });
      host.monotonicMs += HOUR_MS - 1000;
      expect(await later.peek(completed)).toMatchObject({ kind: 'completed' });
      host.monotonicMs += 1000;
      expect(await later.peek(completed)).toEqual({ kind: 'absent' });
    },
  );

  it('the owner of a record with a damaged expiry is dead too', async () => {
    const { path, host, open } = setUp();
    const store = await open();
    const owner = await bring(store, 'executing');
    await store.close();
    query(path, 'UPDATE records SET expires_at = 8700000000000000');
    host.boots('second', 10);
    expect(await (await open()).start(duplicateOf(owner))).toMatchObject({ kind: 'in_doubt' });
  });

  it('a damaged clock is refused, because records could expire too early', async () => {
    const { path, host, open } = setUp();
    const store = await open();
    await store.close();
    query(path, "UPDATE store SET observed_at = 'noon'");
    host.boots('second', 10);
    await expect(open()).rejects.toThrow('clock in table "store" is damaged');
  });
});

describe('on a system without a boot id', () => {
  it('running time continues from the last value, and an owner counts as dead only after its lease', async () => {
    const { host, open } = setUp();
    host.removesBootId();
    const store = await open();
    const owner = await bring(store, 'executing');
    await store.close();
    // Perhaps another boot, perhaps not.
    host.monotonicMs = 90_000_000;
    const later = await open();
    expect(await later.peek(owner)).toEqual({ kind: 'in_flight' });
    host.monotonicMs += lease.leaseMs - 1;
    expect(await later.peek(owner)).toEqual({ kind: 'in_flight' });
    host.monotonicMs += 1;
    expect(await later.peek(owner)).toMatchObject({ kind: 'in_doubt' });
  });

  it('a second process is refused, because its clock could be behind and take living owners for dead', async () => {
    const { host, open } = setUp();
    host.removesBootId();
    const store = await open();
    await expect(open()).rejects.toThrow('another process uses it');
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
    await store.close();
    expect(await (await open()).start(newRequest())).toEqual({ kind: 'started' });
  });
});

describe('while a process uses the store', () => {
  it('one that sees another boot id, or none, is refused, and takes no living owner for dead', async () => {
    const { host, open } = setUp();
    const store = await open();
    const owner = await bring(store, 'executing');
    for (const change of [() => host.boots('second', host.monotonicMs), host.removesBootId]) {
      change();
      await expect(open()).rejects.toThrow('another process uses it');
      expect(await store.peek(owner)).toEqual({ kind: 'in_flight' });
    }
    // Those that see the same one are not.
    host.boots('first', host.monotonicMs);
    expect(await (await open()).peek(owner)).toEqual({ kind: 'in_flight' });
  });

  it('all that open it at once after a boot are let in', async () => {
    const path = storeFolder();
    const opening = Array.from({ length: 6 }, () => RemoteStore.open(path));
    for (const store of await Promise.all(opening)) expect(await store.answer('refusing')).toBeNull();
  });

  it('without a boot id, one that sees it is refused', async () => {
    const { host, open } = setUp();
    host.removesBootId();
    const store = await open();
    host.boots('first', host.monotonicMs);
    await expect(open()).rejects.toThrow('another process uses it');
    await store.close();
    expect(await (await open()).start(newRequest())).toEqual({ kind: 'started' });
  });
});

it('a boot has one id, or none if the system has no boot id file', () => {
  expect(bootId()).toEqual(bootId());
  expect(bootId()).toHaveLength(16);
  expect(bootId('/nowhere/boot_id')).toBeUndefined();
});

it('a process in a time namespace has another boot id, because it has another clock', (context) => {
  const file = new URL('../../src/store/sqlite/running-time.ts', import.meta.url);
  const script = `import { bootId } from '${file}'; process.stdout.write(bootId().toString('hex'))`;
  const idAt = (offset: string) => {
    const node = [process.execPath, '--input-type=module', '-e', script];
    return spawnSync('unshare', ['--time', '--monotonic', offset, '--fork', ...node]).stdout?.toString();
  };
  const own = bootId()?.toString('hex');
  if (idAt('0') === '') context.skip('this machine makes no time namespaces');
  expect(idAt('0')).toBe(own);
  expect(new Set([own, idAt('1'), idAt('100000')]).size).toBe(3);
});
