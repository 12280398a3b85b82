/**
 * With LMDB, opening the store wrote the last transaction's number without the writers' lock. This undid a commit of another
 * process: a started payout vanished from the store and was made twice.
 */
import { expect, test } from 'vitest';
import { scopeOf } from '../../src/idempotency/fingerprint.ts';
import { duplicateOf, newRequest } from '../support/requests.ts';
import { expectIntact, openSqlite, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { Worker } from '../support/worker.ts';

test('every record is stored when its write is acknowledged, however often other processes open the store', async () => {
  const path = storeFolder();
  const openers = Array.from({ length: 4 }, () => new Worker({ kind: 'sqlite', path }, { kind: 'reopen' }));
  const [store, reader] = [await openSqlite(path), await openSqlite(path)];
  const started: string[] = [];
  await until(async () => {
    const request = newRequest();
    expect(await store.start(request)).toEqual({ kind: 'started' });
    expect(await reader.start(duplicateOf(request))).toEqual({ kind: 'in_flight' });
    started.push(request.key);
    return openers.every(({ said }) => said.length >= 10);
  }, 25_000);
  await Promise.all(openers.map((opener) => opener.kill()));
  for (const key of started) expect(await reader.get(scopeOf('M-1', key))).toBeDefined();
  expectIntact(path);
});
