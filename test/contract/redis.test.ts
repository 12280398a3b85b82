import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { STORE_FORMAT, UnreadableRecord } from '../../src/store/types.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeForTest } from '../support/stores.ts';
import { recordKeyOf, redisDamages } from './redis-damages.ts';
import { bring, replayOf } from './states.ts';
import { storeContract } from './store-contract.ts';

const server = await startRedis({ args: ['--databases', '1000'] });

const backend = {
  name: 'redis',
  place: () => ({ kind: 'redis' as const, url: server.url, prefix: randomUUID() }),
  damages: redisDamages,
};

// Each test has its own database, because a listing scans all keys of a database, also those with other prefixes.
let databases = 0;
storeContract({
  ...backend,
  place: () => ({ ...backend.place(), url: `${server.url}/${++databases}` }),
});

describe('in redis', () => {
  it('all keys of a record carry the format version and one hash tag', async () => {
    const place = backend.place();
    const store = await storeForTest(place);
    const owner = await bring(store, 'executing');
    const record = recordKeyOf(place, owner.recordId);
    const { prefix } = place;
    const short = Buffer.from(owner.recordId, 'hex').toString('base64url');
    const partition = `{${prefix}:${STORE_FORMAT}:${Number.parseInt(owner.recordId.slice(0, 3), 16) >> 2}}:`;
    expect(record).toBe(`${partition}${short}`);
    const keys = async () =>
      (await server.admin.keysBuffer(`*${prefix}:*`)).map((key) => key.toString('latin1'));
    expect((await keys()).toSorted()).toEqual([`${prefix}:format`, record, `${partition}open`].toSorted());
    const { createdAtMs = 0 } = (await store.get(owner.recordId)) ?? {};
    const entries = async () => await server.admin.zrange(`${partition}open`, '0', '-1', 'WITHSCORES');
    expect(await entries()).toEqual([`${short} withdraw`, `${-createdAtMs}`]);
    expect(await store.renew(owner)).toBe('ok');
    expect(await keys()).toContain(`${record}:lease`);
    expect(await store.takeBack(owner)).toBe('ok');
    const voided = `${partition}void:${owner.token.toString('latin1')}`;
    expect((await keys()).toSorted()).toEqual([`${prefix}:format`, voided].toSorted());
    const doubtful = await bring(store, 'in_doubt', duplicateOf(owner));
    const note = { by: 'ada', reason: 'in the books' };
    expect(await store.resolve(owner.recordId, doubtful.token, { as: 'released' }, note)).toBe('ok');
    expect(await keys()).toEqual(expect.arrayContaining([`${record}:audit`, `${partition}resolutions`]));
  });

  it('scripts that the server has forgotten are sent again', async () => {
    const store = await storeForTest(backend.place());
    const owner = newRequest();
    const note = { by: 'ada', reason: 'in the books' };
    const calls: [() => Promise<unknown>, unknown][] = [
      [() => store.start(owner), { kind: 'started' }],
      [() => store.renew(owner), 'ok'],
      [() => store.leaveInDoubt(owner), 'ok'],
      [() => store.complete(owner, paid()), 'ok'],
      [() => store.peek(owner), replayOf(paid(), owner)],
      [() => store.release(owner), 'stale'],
      [() => store.restart(duplicateOf(owner)), 'changed'],
      [() => store.resolve(owner.recordId, owner.token, { as: 'released' }, note), 'changed'],
    ];
    for (const [call, answer] of calls) {
      await server.admin.script('FLUSH');
      expect(await call()).toEqual(answer);
    }
  });

  it('a start writes nothing if the progress of a copy there is a value of another type', async () => {
    const place = backend.place();
    const store = await storeForTest(place);
    const request = newRequest();
    const record = recordKeyOf(place, request.recordId);
    await server.admin.rpush(record.replace(/[^:]*$/, 'closed'), 'x');
    await expect(store.start(request)).rejects.toMatchObject({ maybeWritten: false });
    expect(await server.admin.exists(record)).toBe(0);
  });

  it('the owner of a record in another format is not answered stale', async () => {
    const place = backend.place();
    const store = await storeForTest(place);
    const owner = await bring(store, 'executing');
    const record = recordKeyOf(place, owner.recordId);
    await server.admin.setrange(record, 0, '\x03');
    const before = await server.admin.getBuffer(record);
    const calls = [
      () => store.start(owner),
      () => store.renew(owner),
      () => store.complete(owner, paid()),
      () => store.leaveInDoubt(owner),
      () => store.restart(owner),
      () => store.release(owner),
    ];
    for (const call of calls) await expect(call()).rejects.toThrow(UnreadableRecord);
    expect(await server.admin.getBuffer(record)).toEqual(before);
  });
});
