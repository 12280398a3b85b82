/** The writer thread: which writes share a transaction, what a held write lock blocks, and what happens if it dies. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { copyFileSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type { Worker as Thread } from 'node:worker_threads';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { prepareThread } from '../../src/store/sqlite/writer.ts';
import { UnreadableRecord } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { countRecords, expectIntact, openSqlite, query, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

/** Counts the transactions in the WAL. The last frame of each has the size of the database in its header. */
function transactionsIn(path: string): number {
  const wal = readFileSync(join(path, 'records.db-wal'));
  let count = 0;
  for (let at = 32; at + 24 <= wal.length; at += 24 + 4096) if (wal.readUInt32BE(at + 4) !== 0) count++;
  return count;
}

/** Holds the write lock, as a process that is stopped within a transaction does. */
function holdLock(path: string): { release(): void } {
  const database = new DatabaseSync(join(path, 'records.db'), { timeout: 10_000 });
  onTestFinished(() => database.close());
  database.exec('BEGIN IMMEDIATE');
  return { release: () => database.exec('ROLLBACK') };
}

/** Collects the threads that this process starts from now on. */
function threadsStarted(): Thread[] {
  const threads: Thread[] = [];
  const hear = (message: unknown) => threads.push((message as { worker: Thread }).worker);
  subscribe('worker_threads', hear);
  onTestFinished(() => void unsubscribe('worker_threads', hear));
  return threads;
}

describe('writes of one process', () => {
  it('that arrive together, or while others are under way, share a transaction', async () => {
    const path = storeFolder();
    const store = await openSqlite(path);
    const before = transactionsIn(path);
    const requests = Array.from({ length: 100 }, () => newRequest());
    const started = await Promise.all(requests.map((request) => store.start(request)));
    expect(new Set(started.map(({ kind }) => kind))).toEqual(new Set(['started']));
    expect(transactionsIn(path) - before).toBeLessThanOrEqual(2);
  });

  it('are several transactions if they are many or large, so that other processes wait for none for long', async () => {
    let transactions = 0;
    const store = await openSqlite(storeFolder(), {
      timeoutMs: 30_000,
      emit: emitTo({ sqliteCommitSeconds: () => transactions++ }),
    });
    const owners = Array.from({ length: 600 }, () => newRequest());
    await Promise.all(owners.map((owner) => store.start(owner)));
    expect(transactions).toBe(3);
    const response = { status: 200, headers: [], body: Buffer.alloc(1_048_576, 'x') };
    const large = owners.slice(0, 12).map((owner) => store.complete(owner, { kind: 'response', response }));
    expect(new Set(await Promise.all(large))).toEqual(new Set(['ok']));
    expect(transactions).toBe(6);
  });

  it('are all answered when the store is closed meanwhile, and later ones are refused', async () => {
    const path = storeFolder();
    const store = await openSqlite(path);
    const owner = await bring(store, 'executing');
    const completing = store.complete(owner, paid());
    const closing = store.close();
    await expect(store.complete(owner, paid())).rejects.toMatchObject({ maybeWritten: false });
    expect(await completing).toBe('ok');
    await closing;
    expect(query(path, 'SELECT state FROM records')).toEqual([{ state: 'completed' }]);
  });

  it('share a transaction with a record that cannot be read, or has too long a text, and succeed', async () => {
    const path = storeFolder();
    const store = await openSqlite(path);
    const [damaged, owner] = [await bring(store, 'executing'), await bring(store, 'executing')];
    query(path, `UPDATE records SET record = NULL WHERE idempotency_key = '${damaged.key}'`);
    const tooLong = { ...newRequest(), operation: 'x'.repeat(256) };
    const answers = await Promise.allSettled([
      store.start(tooLong),
      store.start(duplicateOf(damaged)),
      store.complete(owner, paid()),
    ]);
    expect(answers).toEqual([
      { status: 'rejected', reason: expect.any(RangeError) },
      { status: 'rejected', reason: expect.any(UnreadableRecord) },
      { status: 'fulfilled', value: 'ok' },
    ]);
  });

  it('share a transaction with one for which there is no memory, and get their own answers', async () => {
    const store = await openSqlite(storeFolder());
    const owner = await bring(store, 'executing');
    const response = { status: 200, headers: [], body: Buffer.alloc(1_048_576, 'x') };
    const Memory = SharedArrayBuffer;
    vi.stubGlobal('SharedArrayBuffer', function scarce(bytes: number) {
      if (bytes > 1_048_576) throw new RangeError('Array buffer allocation failed');
      return new Memory(bytes);
    });
    onTestFinished(() => void vi.unstubAllGlobals());
    const request = newRequest();
    const answers = await Promise.allSettled([
      store.complete(owner, { kind: 'response', response }),
      store.start(request),
    ]);
    expect(answers).toEqual([
      { status: 'rejected', reason: expect.any(RangeError) },
      { status: 'fulfilled', value: { kind: 'started' } },
    ]);
    expect(await store.get(request.recordId)).toMatchObject({ state: 'executing', token: request.token });
    vi.unstubAllGlobals();
    expect(await store.complete(owner, { kind: 'response', response })).toBe('ok');
  });

  it('that are under way at their time limit are maybe written', async () => {
    const path = storeFolder();
    const [store, hasty] = [await openSqlite(path), await openSqlite(path, { timeoutMs: 20 })];
    const owner = await bring(store, 'executing');
    // It takes longer than the time limit to write.
    const response = { status: 200, headers: [], body: Buffer.alloc(32 * 1_048_576, 'x') };
    const late = hasty.complete(owner, { kind: 'response', response });
    await expect(late).rejects.toMatchObject({
      message: expect.stringContaining('no answer within 20 ms'),
      maybeWritten: true,
    });
    await until(async () => (await store.get(owner.recordId))?.state === 'completed');
  });
});

describe('while another process holds the write lock', () => {
  it('writes fail within the time limit and surely did not happen; reads are answered', async () => {
    const path = storeFolder();
    const timeoutMs = 1000;
    const store = await openSqlite(path, { timeoutMs });
    const [owner, completed] = [await bring(store, 'executing'), await bring(store, 'completed')];
    const lock = holdLock(path);
    const startedMs = performance.now();
    const writes = [store.start(newRequest()), store.complete(owner, paid()), store.renew(owner)];
    for (const write of writes) await expect(write).rejects.toMatchObject({ maybeWritten: false });
    expect(performance.now() - startedMs).toBeLessThan(timeoutMs + 1700);
    expect(await store.start(duplicateOf(completed))).toMatchObject({ kind: 'completed' });
    expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining('write lock') });
    // A slow process is not a failure of the disk.
    expect(store.refusing).toBeUndefined();
    lock.release();
    expect(await store.complete(owner, paid())).toBe('ok');
    expect(countRecords(path)).toBe(2);
  });

  it('a process can open the store, and reads', async () => {
    const path = storeFolder();
    const store = await openSqlite(path);
    const owner = await bring(store, 'completed');
    holdLock(path);
    const other = await openSqlite(path);
    expect(await other.peek(owner)).toMatchObject({ kind: 'completed' });
  });
});

describe('a writer thread that dies', () => {
  it('is replaced; writes that it had not answered are maybe written, and later writes succeed', async () => {
    const path = storeFolder();
    const threads = threadsStarted();
    const replaced: unknown[] = [];
    const store = await openSqlite(path, {
      emit: emitTo({ writer_replaced: ({ err }) => replaced.push(err) }),
    });
    const owner = await bring(store, 'executing');
    const lock = holdLock(path);
    const underWay = store.complete(owner, paid()).catch((error: unknown) => error);
    // The batch is sent at the end of this turn of the event loop.
    await new Promise((resolve) => setTimeout(resolve, 20));
    const waiting = store.start(newRequest());
    const dying = threads[0]?.terminate();
    lock.release();
    await dying;
    expect(await underWay).toMatchObject({ name: 'StoreUnavailable', maybeWritten: true });
    expect(await waiting).toEqual({ kind: 'started' });
    expect(replaced).toHaveLength(1);
    expect(threads).toHaveLength(2);
    expect(await store.complete(owner, paid())).toBe('ok');
    expect(await store.health()).toMatchObject({ ok: true });
    expectIntact(path);
  });

  it('is not replaced while another file has taken the place of the database', async () => {
    const [path, aside] = [storeFolder(), storeFolder()];
    const files = ['records.db', 'records.db-wal', 'records.db-shm'];
    const threads = threadsStarted();
    const store = await openSqlite(path);
    // A key that only another process knows, and a backup from before it.
    const other = await openSqlite(path);
    query(path, `VACUUM INTO '${join(aside, 'backup.db')}'`);
    const completed = await bring(other, 'completed');
    for (const file of files) renameSync(join(path, file), join(aside, file));
    copyFileSync(join(aside, 'backup.db'), join(path, 'records.db'));
    await threads[0]?.terminate();
    await until(() => store.refusing !== undefined);
    expect(await store.start(duplicateOf(completed))).toMatchObject({ kind: 'completed' });
    await expect(store.start(newRequest())).rejects.toMatchObject({ maybeWritten: false });
    for (const file of files) renameSync(join(aside, file), join(path, file));
    await until(async () => (await store.health()).ok);
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  });
});

describe('a thread that is started before its writer', () => {
  it('writes for the first store', async () => {
    const threads = threadsStarted();
    const endSpareThread = prepareThread();
    const store = await openSqlite(storeFolder());
    endSpareThread();
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
    await openSqlite(storeFolder());
    expect(threads).toHaveLength(2);
  });

  it('is replaced if it fails before', async () => {
    const threads = threadsStarted();
    prepareThread();
    await threads[0]?.terminate();
    const store = await openSqlite(storeFolder());
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
    expect(threads).toHaveLength(2);
  });

  it('ends if no writer takes it', async () => {
    const threads = threadsStarted();
    const endSpareThread = prepareThread();
    endSpareThread();
    await once(threads[0] as Thread, 'exit');
  });
});
