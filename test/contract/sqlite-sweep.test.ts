import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { AUDIT_RETENTION_MS } from '../../src/store/doubts.ts';
import { type Execution, StoreUnavailable, UnreadableRecord, VOID_TOKEN_MS } from '../../src/store/types.ts';
import { newRequest } from '../support/requests.ts';
import { countRecords, openSqlite, query, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { sqliteDamages } from './sqlite-damages.ts';
import { bring, stages } from './states.ts';

/** A clock that is set by hand. An age is measured on both clocks, so neither may go on by itself. */
function handClock() {
  const clock = {
    ...systemClock,
    atMs: 1_000_000,
    monotonicMs: () => clock.atMs,
    wallMs: () => 1.7e12 + clock.atMs,
  };
  return clock;
}

const times = { retentionMs: 1000, inDoubtRetentionMs: 1000 };
const rowsOf = (path: string, table: string) => query(path, `SELECT 1 FROM ${table}`).length;

describe('the sweep', () => {
  it('removes records that have expired, and no others', async () => {
    const [path, clock] = [storeFolder(), handClock()];
    const store = await openSqlite(path, { ...times, clock });
    // More than one step removes.
    for (let number = 0; number < 30; number++) for (const stage of stages) await bring(store, stage);
    clock.atMs += 999;
    const kept = await Promise.all(Array.from({ length: 20 }, () => bring(store, 'executing')));
    expect(countRecords(path)).toBe(110);
    clock.atMs += 1;
    await until(() => countRecords(path) === kept.length);
    for (const { recordId, token } of kept) expect(await store.get(recordId)).toMatchObject({ token });
  });

  it('removes tokens that were voided an hour ago', async () => {
    const [path, clock] = [storeFolder(), handClock()];
    const store = await openSqlite(path, { clock });
    const owner = newRequest();
    expect(await store.takeBack(owner)).toBe('stale');
    clock.atMs += VOID_TOKEN_MS - 1;
    await expect(store.start(owner)).rejects.toThrow(StoreUnavailable);
    clock.atMs += 1;
    await until(() => rowsOf(path, 'void_tokens') === 0);
  });

  it('removes audit records after their own retention, long after their record', async () => {
    const [path, clock] = [storeFolder(), handClock()];
    const store = await openSqlite(path, { ...times, clock });
    const owner = await bring(store, 'in_doubt');
    const note = { by: 'ada', reason: 'not in the books' };
    expect(await store.resolve(owner.recordId, owner.token, { as: 'released' }, note)).toBe('ok');
    await bring(store, 'in_doubt');
    clock.atMs += AUDIT_RETENTION_MS - 1;
    await until(() => countRecords(path) === 0);
    expect(await store.audit(owner.recordId)).toMatchObject([note]);
    clock.atMs += 1;
    expect(await store.audit(owner.recordId)).toEqual([]);
    await until(() => rowsOf(path, 'audit') === 0);
  });

  it('keeps expired rows that cannot be read, whatever is wrong with them, and removes the rows after them', async () => {
    const [path, clock] = [storeFolder(), handClock()];
    const store = await openSqlite(path, { ...times, clock });
    const damaged: Execution[] = [];
    // More than one step reads.
    for (let round = 0; round < 4; round++)
      for (const [, damage, from = stages] of sqliteDamages) {
        const owner = await bring(store, from[0] ?? 'completed');
        await damage({ kind: 'sqlite', path }, owner.recordId);
        damaged.push(owner);
      }
    clock.atMs += 1;
    for (let number = 0; number < 10; number++) await bring(store, 'completed');
    clock.atMs += 1000;
    await until(() => countRecords(path) === damaged.length);
    for (const { recordId } of damaged) await expect(store.get(recordId)).rejects.toThrow(UnreadableRecord);
  });
});
