import { randomUUID } from 'node:crypto';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Scope } from '../../src/lib/brands.ts';
import type { Execution, Listing, Resolution, Store } from '../../src/store/contract.ts';
import { OpenIndex } from '../../src/store/redis/open-index.ts';
import { openStore, type RedisPlace, type StoreTimes } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { counted } from './doubt-counts.ts';
import { all } from './listing.ts';
import { bring, replayOf } from './states.ts';

const server = await startRedis({ args: ['--databases', '100'] });
const note = { by: 'ada', reason: 'in the books' };
const released: Resolution = { as: 'released' };

let databases = 0;
/** A database of its own, because the search for missing records reads all keys of a database. */
async function opened(times?: Partial<StoreTimes>, url = `${server.url}/${++databases}`) {
  const place: RedisPlace = { kind: 'redis', url, prefix: randomUUID() };
  const open = async () => {
    const store = await openStore(place, times);
    onTestFinished(() => store.close());
    return store;
  };
  const admin = server.admin.duplicate({ db: databases });
  onTestFinished(() => admin.disconnect());
  const index = `${place.prefix}:v2:open`;
  return { store: await open(), open, admin, index, place };
}

/** The whole life of keys, and what the store answers. It must be the same whatever becomes of the index. */
async function lives(store: Store): Promise<unknown[]> {
  const answers: unknown[] = [];
  const note = async (answer: Promise<unknown>) => answers.push(await answer);
  const [executed, discarded, doubtful, unpaid, again, late, voided] = Array.from({ length: 7 }, () =>
    newRequest(),
  ) as [...[Execution, Execution, Execution, Execution, Execution, Execution, Execution]];
  const byHand = { by: 'ada', reason: 'in the books' };
  for (const owner of [executed, discarded, doubtful, unpaid, again]) await note(store.start(owner));
  await note(store.start(executed));
  await note(store.start(otherOf(executed)));
  await note(store.start(duplicateOf(executed)));
  await note(store.complete(executed, paid()));
  await note(store.complete(executed, paid('again')));
  expect(await store.start(duplicateOf(executed))).toEqual(replayOf(paid(), executed));
  await note(store.release(discarded));
  await note(store.release(discarded));
  for (const owner of [doubtful, unpaid, again]) await note(store.markInDoubt(owner));
  await note(store.markInDoubt(doubtful));
  await note(store.resolve(doubtful.scope, doubtful.token, { as: 'completed', completion: paid() }, byHand));
  await note(store.complete(doubtful, paid('late')));
  await note(store.resolve(unpaid.scope, unpaid.token, released, byHand));
  const heir = duplicateOf(again);
  await note(store.restart(heir));
  await note(store.complete(heir, paid('heir')));
  await note(store.complete(late, paid('late')));
  await note(store.takeBack(voided));
  await note(store.start(voided).catch((error: Error) => error.message));
  await note(store.start(voided).catch((error: Error) => error.message));
  await note(store.start(duplicateOf(voided)));
  return answers;
}

const ANSWERS = [
  ...Array(6).fill({ kind: 'started' }),
  ...[{ kind: 'mismatch' }, { kind: 'in_flight' }, 'ok', 'ok', 'ok', 'stale', 'ok', 'ok', 'ok', 'ok'],
  ...['ok', 'stale', 'ok', 'ok', 'ok', 'ok', 'stale'],
  ...Array(2).fill('redis: the execution was given up: its token is voided'),
  { kind: 'started' },
];

describe('the index of open records', () => {
  it('lets a listing begin with the keys in doubt, whatever number of completed ones there is', async () => {
    const { store, admin, index } = await opened();
    for (let batch = 0; batch < 10; batch++) {
      const completed = Array.from({ length: 250 }, () => newRequest());
      await Promise.all(completed.map((owner) => store.start(owner)));
      await Promise.all(completed.map((owner) => store.complete(owner, paid())));
    }
    const doubtful = await Promise.all(Array.from({ length: 5 }, () => bring(store, 'in_doubt')));
    await bring(store, 'executing');
    const scopes = doubtful.map(({ scope }) => scope).toSorted();
    const found = (page: Listing) => page.records.map(({ scope }) => scope);
    expect(found(await store.list({ inDoubt: true, limit: 100 }))).toEqual(scopes);
    // One that the index lacks is listed later, and the others are not listed again.
    await admin.zrem(index, scopes[2] as string);
    const listed: string[] = [];
    let cursor: string | undefined;
    do {
      const page = await store.list({ inDoubt: true, limit: 2, cursor });
      listed.push(...found(page));
      cursor = page.cursor;
    } while (cursor !== undefined);
    expect(listed).toEqual([...scopes.filter((scope) => scope !== scopes[2]), scopes[2]]);
    // A file of another type hides nothing.
    await admin.set(index, 'no index');
    expect((await all(store, { inDoubt: true })).records.map(({ scope }) => scope).toSorted()).toEqual(
      scopes,
    );
  });

  it('has the scopes whose records are executing or in doubt, after each way to open and close one', async () => {
    const { store, admin, index } = await opened();
    const scopes = () => admin.zrange(index, '-', '+', 'BYLEX');
    const [executing, doubtful, completed, discarded, resolved, unpaid] = await Promise.all(
      Array.from({ length: 6 }, () => bring(store, 'executing')),
    );
    if (!executing || !doubtful || !completed || !discarded || !resolved || !unpaid)
      throw new Error('unreachable');
    const all = [executing, doubtful, completed, discarded, resolved, unpaid].map(
      ({ scope }) => scope as string,
    );
    expect(await scopes()).toEqual(all.toSorted());
    const leaves = async (owner: Execution) => {
      all.splice(all.indexOf(owner.scope), 1);
      expect(await scopes()).toEqual(all.toSorted());
    };
    await store.complete(completed, paid());
    await leaves(completed);
    await store.release(discarded);
    await leaves(discarded);
    for (const owner of [doubtful, resolved, unpaid]) await store.markInDoubt(owner);
    expect(await scopes()).toEqual(all.toSorted());
    const asCompleted: Resolution = { as: 'completed', completion: paid() };
    expect(await store.resolve(resolved.scope, resolved.token, asCompleted, note)).toBe('ok');
    await leaves(resolved);
    expect(await store.resolve(unpaid.scope, unpaid.token, released, note)).toBe('ok');
    await leaves(unpaid);
    const heir = duplicateOf(doubtful);
    expect(await store.restart(heir)).toBe('ok');
    expect(await scopes()).toEqual(all.toSorted());
    await store.release(heir);
    await leaves(doubtful);
    await store.complete(executing, paid());
    expect(await admin.exists(index)).toBe(0);
    // Neither opens a record.
    await store.complete(newRequest(), paid());
    const voided = newRequest();
    await store.takeBack(voided);
    await expect(store.start(voided)).rejects.toThrow('voided');
    expect(await admin.exists(index)).toBe(0);
  });

  it.each<[string, (setup: Awaited<ReturnType<typeof opened>>) => Promise<Store>]>([
    ['works', async ({ store }) => store],
    [
      'is a key of another type, and so are the numbers of resolutions',
      async ({ store, admin, index, place }) => {
        await admin.set(index, 'something else');
        await admin.set(`${place.prefix}:v2:doubts:resolutions`, 'something else');
        return store;
      },
    ],
    [
      'may not be written by the user',
      async ({ admin, place }) => {
        const rules = '-@all +@connection +info +config|get +set +get +getrange +setrange +strlen +pttl +del';
        const more = '+exists +pexpire +expire +incrby +scan +lrange +rpush +eval +evalsha +wait +time';
        const user = `old-${randomUUID()}`;
        await admin.call('ACL', 'SETUSER', user, 'on', '>secret', '~*', ...`${rules} ${more}`.split(' '));
        const url = new URL(place.url);
        url.username = user;
        url.password = 'secret';
        const store = await openStore({ ...place, url: url.href });
        onTestFinished(() => store.close());
        return store;
      },
    ],
  ])('does not change what the store answers when it %s', async (_, prepare) => {
    const setup = await opened();
    expect(await lives(await prepare(setup))).toEqual(ANSWERS);
  });

  it('that cannot be read makes the count fail, and not show that nothing is in doubt', async () => {
    const { store, admin, index } = await opened();
    await bring(store, 'in_doubt');
    await admin.set(index, 'something else');
    await expect(counted(store)).rejects.toThrow('another type');
  });

  it('loses expired records with the next count, also while Redis is out of memory', async () => {
    const { store, admin, index } = await opened({
      leaseMs: 50,
      retentionMs: 4000,
      inDoubtRetentionMs: 4000,
    });
    await bring(store, 'in_doubt');
    await bring(store, 'executing');
    await until(async () => (await admin.keys('*v2:{*')).length === 0);
    expect(await admin.zcard(index)).toBe(2);
    // A record that an older gateway has completed.
    const scope = 'a'.repeat(64);
    await admin.zadd(index, 0, scope);
    await bring(store, 'completed', { ...newRequest(), scope: 'b'.repeat(64) as Scope });
    await admin.zadd(index, 0, 'b'.repeat(64));
    const doubtful = await bring(store, 'in_doubt');
    await admin.config('SET', 'maxmemory', '1');
    onTestFinished(async () => void (await admin.config('SET', 'maxmemory', '0')));
    await expect(store.start(newRequest())).rejects.toThrow('OOM');
    for (const everyMs of [0, 60_000]) {
      const { operations } = await store.countDoubts({ everyMs });
      expect(operations.get('withdraw')).toEqual({ inDoubt: 1, ownerGone: 0 });
    }
    expect(await admin.zrange(index, '-', '+', 'BYLEX')).toEqual([doubtful.scope]);
    // What is known finds room, and leaves the index.
    expect(await store.complete(doubtful, paid())).toBe('ok');
    expect(await admin.exists(index)).toBe(0);
  });

  it('is counted to its end while Redis is out of memory, also if the turn would have to be renewed', async () => {
    const { store, admin } = await opened();
    await Promise.all(Array.from({ length: 300 }, () => bring(store, 'in_doubt')));
    await admin.config('SET', 'maxmemory', '1');
    onTestFinished(async () => void (await admin.config('SET', 'maxmemory', '0')));
    const { operations } = await store.countDoubts({ everyMs: 1 });
    expect(operations.get('withdraw')?.inDoubt).toBe(300);
  });

  it('gets the records that it lacks, and only those that are open', async () => {
    const { store, admin, index, open } = await opened({ leaseMs: 50 });
    const [doubtful, gone] = [await bring(store, 'in_doubt'), await bring(store, 'executing')];
    for (let i = 0; i < 600; i++) await bring(store, 'completed');
    await admin.del(index);
    // Each gateway looks when it begins, unless another one has looked within an hour.
    const other = await open();
    await other.countDoubts({ everyMs: 100 });
    const found = await until(async () => {
      const { operations } = await counted(other);
      return operations.withdraw?.inDoubt === 2 ? operations : undefined;
    });
    expect(found).toEqual({ withdraw: { inDoubt: 2, ownerGone: 1 } });
    expect(await admin.zrange(index, '-', '+', 'BYLEX')).toEqual([doubtful.scope, gone.scope].toSorted());
    await until(async () => (await admin.pttl(index.replace('open', 'doubts:turn:missing'))) > 60_000);
  });

  it('is read by one gateway for all of them, and by another one when that has gone', async () => {
    const { store, open } = await opened();
    const other = await open();
    const everyMs = 1000;
    const inDoubt = async (from: Store) => {
      const { operations, countedAtMs } = await from.countDoubts({ everyMs });
      return [operations.get('withdraw')?.inDoubt ?? 0, countedAtMs];
    };
    const [none, countedAtMs] = await inDoubt(store);
    expect(none).toBe(0);
    const owner = await bring(store, 'in_doubt');
    expect(await inDoubt(other)).toEqual([0, countedAtMs]);
    // Numbers of resolutions are of now.
    await store.resolve(owner.scope, owner.token, released, note);
    const { resolutions } = await other.countDoubts({ everyMs });
    expect(resolutions).toEqual([{ as: 'released', by: 'operator', number: 1 }]);
    await bring(store, 'in_doubt');
    await store.close();
    await until(async () => (await inDoubt(other))[0] === 1);
  });

  it('is read by another gateway at once when the first one could not', async () => {
    const { store, admin, open, index } = await opened();
    const [owner, other] = [await bring(store, 'in_doubt'), await open()];
    await admin.set(index, 'something else');
    await expect(store.countDoubts({ everyMs: 60_000 })).rejects.toThrow('another type');
    await admin.del(index);
    await admin.zadd(index, 0, owner.scope);
    const { operations } = await other.countDoubts({ everyMs: 60_000 });
    expect(operations.get('withdraw')?.inDoubt).toBe(1);
  });

  it('leaves a count that the others ignore if it was damaged', async () => {
    const { store, admin, open, place } = await opened();
    await bring(store, 'in_doubt');
    const other = await open();
    await store.countDoubts({ everyMs: 60_000 });
    const key = `${place.prefix}:v2:doubts:count`;
    const left = (await admin.get(key)) ?? '';
    expect((await other.countDoubts({ everyMs: 60_000 })).operations.size).toBe(1);
    for (const damaged of [
      '',
      'null',
      '{}',
      left.slice(0, -3),
      left.replace('"inDoubt":1', '"inDoubt":"1"'),
    ]) {
      await admin.set(key, damaged);
      expect(await other.countDoubts({ everyMs: 60_000 })).toMatchObject({ countedAtMs: undefined });
    }
  });

  it('names the index of each slot of a cluster by a tag that leads to that slot', async () => {
    const index = new OpenIndex('p', true);
    const names = index.names();
    expect(new Set(names)).toHaveLength(16_384);
    // A gateway with other tags would not find what is in the indexes, so they must stay as they are.
    expect([names[0], names[16_383]]).toEqual(['p:v2:open:{1bz}', 'p:v2:open:{hia}']);
    expect(index.nameOf('a'.repeat(64) as Scope)).toBe('p:v2:open:{eya}');
  });
});
