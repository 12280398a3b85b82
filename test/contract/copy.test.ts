/** A copy between real stores. What it does when it is killed, paused or undone is in test/unit/copy.test.ts. */
import { randomUUID } from 'node:crypto';
import { copyFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { Copy, type CopyOptions, type CopyReport } from '../../src/ledger/store-copy.ts';
import { systemClock } from '../../src/lib/clock.ts';
import type { AuditRecord } from '../../src/store/doubts.ts';
import type { CopyProgress, CopyRegister, CopyState, Scanned, Seen } from '../../src/store/register.ts';
import { ApplicationRegister } from '../../src/store/sqlite/application-register.ts';
import type { Encryption } from '../../src/store/store-options.ts';
import { type Execution, StoreClosed } from '../../src/store/types.ts';
import { newRecord } from '../registers/records.ts';
import { openCopyRegister, type StorePlace } from '../support/open-store.ts';
import { newSchema, startPostgres } from '../support/postgres-server.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeFolder } from '../support/sqlite-files.ts';
import { type StoreKind, storeForTest } from '../support/stores.ts';
import { bring } from './states.ts';

const redis = await startRedis();

const postgres = await startPostgres({ fsync: 'off' });

const places: Record<StoreKind | 'application', () => StorePlace | Promise<StorePlace>> = {
  sqlite: () => ({ kind: 'sqlite', path: storeFolder() }),
  redis: () => ({ kind: 'redis', url: redis.url, prefix: randomUUID() }),
  postgres: () => newSchema(postgres),
  application: async () => {
    const path = join(storeFolder(), 'application.db');
    using database = new DatabaseSync(path);
    const options = { timeoutMs: 10_000, clock: systemClock };
    await (await ApplicationRegister.openIn(database, options)).close();
    return { kind: 'sqlite', path, isFile: true };
  },
};
const directions = [
  ['sqlite', 'redis'],
  ['redis', 'sqlite'],
  ['sqlite', 'postgres'],
  ['postgres', 'redis'],
  ['application', 'sqlite'],
  ['sqlite', 'application'],
] as const;

const opened = (place: StorePlace, encryption?: Encryption) =>
  storeForTest(place, {}, systemClock, undefined, encryption);

async function side(place: StorePlace): Promise<CopyRegister> {
  const register = await openCopyRegister(place);
  onTestFinished(() => register.close());
  return register;
}

/** Copies as the command does. */
async function copy(from: StorePlace, to: StorePlace, more: Partial<CopyOptions> = {}): Promise<CopyReport> {
  const sides = { from: await openCopyRegister(from), to: await openCopyRegister(to) };
  try {
    return await new Copy({ ...sides, ...more }).run();
  } finally {
    await Promise.all([sides.from.close(), sides.to.close()]);
  }
}

const note = { by: 'ada', reason: 'in the books' };

/** Records in each state, with audit trails. */
async function fill(store: Store) {
  const completed = await bring(store, 'completed', newRequest({ key: `~ ${randomUUID()}` }));
  const large = await bring(store, 'executing');
  await store.complete(large, { kind: 'tombstone', status: 201 });
  const gaveUp = await bring(store, 'in_doubt');
  const late = await bring(store, 'in_doubt');
  await store.complete(late, paid('late'));
  const [resolved, freed] = [await bring(store, 'in_doubt'), await bring(store, 'in_doubt')];
  await store.resolve(
    resolved.recordId,
    resolved.token,
    { as: 'completed', completion: paid('books') },
    note,
  );
  await store.resolve(freed.recordId, freed.token, { as: 'released' }, note);
  const restarted = await bring(store, 'in_doubt');
  const second = duplicateOf(restarted);
  expect(await store.restart(second)).toBe('ok');
  await store.leaveInDoubt(second, 'reset');
  return { completed, large, gaveUp, late, resolved, freed, restarted };
}

describe.each(directions)('a copy from %s to %s', (from, to) => {
  it('has every record with what is left of its life, and every audit trail', async () => {
    const [source, destination] = [await places[from](), await places[to]()];
    const encryption = { keys: [{ id: 'one', secret: 'ab'.repeat(32) }] };
    const [old, sealing] = [await opened(source), await opened(source, encryption)];
    await old.visit('protect');
    const owners: Record<string, Execution> = await fill(old);
    const sealed = await bring(sealing, 'completed');
    expect(await copy(source, destination)).toMatchObject({ completed: 5, open: 2, audits: 2, cutOff: 0 });

    const [left, right] = [await side(source), await side(destination)];
    const next = await opened(destination);
    for (const { recordId } of [...Object.values(owners), sealed]) {
      const [was, is] = [await left.register.read(recordId), await right.register.read(recordId)];
      // Redis' records name the key of their encryption a second time.
      expect({ ...is?.record, encryptionKeyId: '' }).toEqual({ ...was?.record, encryptionKeyId: '' });
      expect(Math.abs((is?.expiresInMs ?? 0) - (was?.expiresInMs ?? 0))).toBeLessThan(20_000);
      expect(await next.audit(recordId)).toEqual(await old.audit(recordId));
    }
    expect((await next.countDoubts({})).operations.get('withdraw')).toEqual({ inDoubt: 2, ownerGone: 0 });
    expect(await next.start(duplicateOf(owners.completed as Execution))).toMatchObject({ kind: 'completed' });
    expect(await next.start(duplicateOf(owners.freed as Execution))).toEqual({ kind: 'started' });
    await expect(next.start(duplicateOf(sealed))).rejects.toThrow('encrypted with the key "one"');
    expect(await (await opened(destination, encryption)).start(duplicateOf(sealed))).toMatchObject({
      kind: 'completed',
      response: paid().response,
    });
    expect(await old.start(duplicateOf(owners.completed as Execution))).toMatchObject({ kind: 'completed' });
    await expect(old.start(newRequest())).rejects.toThrow(StoreClosed);
    await expect(copy(source, destination)).rejects.toThrow('the source was moved');
  });

  it('refuses what a paused gateway stores late, and its key is in doubt', async () => {
    const [source, destination] = [await places[from](), await places[to]()];
    const old = await opened(source);
    const owner = await bring(old, 'executing');
    const lines: string[] = [];
    const onProgress = (line: string) => void lines.push(line);
    expect(await copy(source, destination, { althoughAlive: true, onProgress })).toMatchObject({ cutOff: 1 });
    expect(lines[1]).toContain(`not waiting for withdraw of M-1, key ${owner.key}, on gateway gateway-test`);
    await expect(old.complete(owner, paid())).rejects.toMatchObject({
      ...{ name: 'StoreUnavailable', maybeWritten: false },
    });
    const next = await storeForTest(destination, { leaseMs: 1 });
    expect(await next.get(owner.recordId)).toMatchObject({ state: 'executing', token: owner.token });
  });
});

it.each(['postgres', 'redis', 'sqlite'] as const)(
  'a record of PostgreSQL 17 or newer whose expires_at was set to infinity is copied to %s',
  async (to) => {
    const [source, destination] = [await places.postgres(), await places[to]()];
    const owner = await bring(await opened(source), 'completed');
    const [from, receiving] = [await side(source), await side(destination)];
    // Older versions cannot subtract from infinity.
    const { register } = from;
    const read = register.read.bind(register);
    register.read = async (id) => ({ ...((await read(id)) as Seen), expiresInMs: Number.POSITIVE_INFINITY });
    expect(await new Copy({ from, to: receiving }).run()).toMatchObject({ completed: 1 });
    expect(await (await opened(destination)).start(duplicateOf(owner))).toMatchObject({ kind: 'completed' });
  },
);

it.each(['sqlite', 'application'] as const)(
  'opens nothing if the file of the source (%s) is replaced meanwhile',
  async (from) => {
    const [source, destination] = [await places[from](), await places.sqlite()];
    await bring(await opened(source), 'completed');
    const { path } = source as { path: string };
    const file = from === 'sqlite' ? join(path, 'records.db') : path;
    const onProgress = (line: string) => {
      if (!line.startsWith('sealed')) return;
      renameSync(file, `${file}-aside`);
      copyFileSync(`${file}-aside`, file);
    };
    await expect(copy(source, destination, { onProgress })).rejects.toThrow('was removed or replaced');
    expect(await (await side(destination)).readCopyProgress()).toMatchObject({ state: 'receiving' });
  },
);

it('a result that was read while its slot moves, which shows no lifetime, is not copied as one that has expired', async () => {
  const [source, destination] = [await places.redis(), await places.sqlite()];
  const owner = await bring(await opened(source), 'completed');
  const [from, to] = [await side(source), await side(destination)];
  const { register } = from;
  const read = register.read.bind(register);
  // The move is given up before the copy looks at the slots again.
  register.read = async (id) => ({ ...((await read(id)) as Seen), expiresInMs: 0 });
  expect(await new Copy({ from, to }).run()).toMatchObject({ completed: 1 });
  expect(await (await opened(destination)).start(duplicateOf(owner))).toMatchObject({ kind: 'completed' });
});

const progressOf = (epoch: number, state: CopyState, runId = 'run'): CopyProgress => ({
  ...{ epoch, state, runId },
  ...{ copyId: 'copy', source: { id: 'ab', count: 2 } },
});

describe.each(Object.entries(places))('%s in a copy', (_kind, place) => {
  it('takes only the progress of the next epoch, and its own again, and obeys it at once', async () => {
    const here = await place();
    const [copying, other, store] = [await side(here), await side(here), await opened(here)];
    expect(await copying.readCopyProgress()).toBeUndefined();
    expect(await copying.changeCopyProgress(progressOf(2, 'closing'))).toBe(false);
    expect(await copying.readCopyProgress()).toBeUndefined();
    const owner = await bring(store, 'executing');
    for (const [epoch, state] of [
      [1, 'closing'],
      [2, 'sealed'],
      [3, 'moved'],
      [4, 'undone'],
      [5, 'receiving'],
      [6, 'opened'],
    ] as const) {
      expect(await copying.changeCopyProgress(progressOf(epoch, state))).toBe(true);
      expect(await copying.changeCopyProgress(progressOf(epoch, state))).toBe(true);
      expect(await other.changeCopyProgress(progressOf(epoch, state, 'other'))).toBe(false);
      expect(await other.changeCopyProgress(progressOf(epoch - 1, 'undone', 'other'))).toBe(false);
      expect(await other.readCopyProgress()).toEqual({ ...progressOf(epoch, state), isWhole: true });
      const gateway = await opened(here);
      const isOpen = state === 'undone' || state === 'opened';
      expect(await gateway.health()).toMatchObject(isOpen ? { ok: true } : { ok: false, isClosed: true });
      const started = gateway.start(newRequest());
      if (isOpen) expect(await started).toEqual({ kind: 'started' });
      else await expect(started).rejects.toThrow(StoreClosed);
      expect(await gateway.peek(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    }
  });

  it('takes records while it receives, and an audit trail once', async () => {
    const here = await place();
    const copying = await side(here);
    const { recordId } = newRequest();
    expect(await copying.changeCopyProgress(progressOf(1, 'receiving'))).toBe(true);
    const { register } = copying;
    const record = newRecord();
    const write = {
      kind: 'replace',
      revision: undefined,
      operation: record.operation,
      expiresInMs: 60_000,
    } as const;
    for (const _ of ['first', 'again'])
      expect(await register.replace(recordId, { ...write, record })).toEqual({ done: true });
    const entry = (reason: string): AuditRecord => ({
      ...{ atMs: 1, by: 'ada', reason, to: { as: 'released' } },
      from: { ...record, state: 'in_doubt' },
    });
    await copying.putAudit(recordId, [entry('first'), entry('second')]);
    await copying.putAudit(recordId, [entry('third')]);
    expect((await register.audit(recordId)).map(({ reason }) => reason)).toEqual(['first', 'second']);
    const scanned: Scanned[] = [];
    for await (const page of copying.scan()) scanned.push(...page);
    expect(scanned).toHaveLength(2);
    expect(scanned).toEqual(
      expect.arrayContaining([
        { id: recordId, kind: 'record' },
        { id: recordId, kind: 'audit' },
      ]),
    );
    const servers = await copying.servers();
    expect(servers).not.toBe('');
    expect(await copying.servers()).toBe(servers);
  });
});

it('a Redis whose progress was written in part only is completed by the same progress, and never by an older one', async () => {
  const prefix = randomUUID();
  const copying = await side({ kind: 'redis', url: redis.url, prefix });
  await copying.changeCopyProgress(progressOf(1, 'closing'));
  const names = (await redis.admin.keys(`{${prefix}:*closed`)).toSorted();
  expect(names).toHaveLength(1024);
  const [authority = ''] = names.filter((name) => name.includes(':0}'));
  const others = names.filter((name) => name !== authority);
  await copying.changeCopyProgress(progressOf(2, 'sealed'));
  await redis.admin.del(...others.slice(0, 500));
  expect(await copying.readCopyProgress()).toMatchObject({ epoch: 2, isWhole: false });
  expect(await copying.changeCopyProgress(progressOf(2, 'sealed'))).toBe(true);
  expect(await copying.readCopyProgress()).toMatchObject({ epoch: 2, isWhole: true });
  // Another run has got as far as some partitions.
  const later = (await redis.admin.get(authority))?.replace('all 2', 'no 4') ?? '';
  await redis.admin.set(others[0] as string, later);
  expect(await copying.changeCopyProgress(progressOf(3, 'moved'))).toBe(false);
  expect(await redis.admin.get(others[0] as string)).toBe(later);
});
