import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { countRecords, openSqlite, query, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const keepFreeBytes = Number.MAX_SAFE_INTEGER;

test('below the disk reserve nothing starts, and running executions are completed and replayed', async () => {
  const path = storeFolder();
  const unlimited = await openSqlite(path);
  expect(await unlimited.health()).toEqual({ ok: true, detail: 'sqlite', warnings: [] });
  expect(unlimited.refusing).toBeUndefined();
  const [sent, doubtful] = [await bring(unlimited, 'executing'), await bring(unlimited, 'in_doubt')];

  const store = await openSqlite(path, { keepFreeBytes });
  const shortage = `new executions are refused: the disk of ${path} has `;
  expect(store.refusing).toContain(shortage);
  await expect(store.start(newRequest())).rejects.toMatchObject({
    name: 'StoreUnavailable',
    message: expect.stringContaining(shortage),
    maybeWritten: false,
  });
  await expect(store.restart(duplicateOf(doubtful))).rejects.toThrow(shortage);
  expect(await store.start(duplicateOf(sent))).toEqual({ kind: 'in_flight' });
  expect(await store.peek(newRequest())).toEqual({ kind: 'absent' });
  expect(await store.complete(sent, paid())).toBe('ok');
  expect(await store.release(doubtful)).toBe('ok');
  expect(await store.start(duplicateOf(sent))).toMatchObject({ kind: 'completed' });
  expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining(shortage) });
});

test('below the disk reserve a record of a dead owner is marked, and nothing is swept', async () => {
  const path = storeFolder();
  const unlimited = await openSqlite(path, { leaseMs: 1 });
  const owner = await bring(unlimited, 'executing');
  await bring(unlimited, 'completed');
  const store = await openSqlite(path, { keepFreeBytes });
  await unlimited.close();
  query(path, "UPDATE records SET expires_at = 1 WHERE state = 'completed'");
  expect(await store.start(duplicateOf(owner))).toMatchObject({ kind: 'in_doubt' });
  expect(await store.peek(owner)).toMatchObject({ kind: 'in_doubt' });
  // Longer than the pause between two sweeps.
  await sleep(600);
  expect(query(path, 'SELECT state FROM records ORDER BY id')).toEqual([
    { state: 'in_doubt' },
    { state: 'completed' },
  ]);
  await openSqlite(path);
  await until(() => countRecords(path) === 1);
});
