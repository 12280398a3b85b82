import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { LmdbStore } from '../../src/idempotency/stores/lmdb/lmdb-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { LONG } from '../support/open-store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { bring } from './states.ts';

test('on the last of the disk nothing new is claimed, and what has begun is settled and replayed', async () => {
  const path = mkdtempSync(join(tmpdir(), 'lmdb-room-'));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  const roomy = await LmdbStore.open({ path, ...LONG, clock: systemClock });
  onTestFinished(() => roomy.close());
  expect(await roomy.health()).toMatchObject({ ok: true, warnings: [] });
  const [begun, doubtful] = [await bring(roomy, 'executing'), await bring(roomy, 'in_doubt')];

  const store = await LmdbStore.open({
    path,
    ...LONG,
    clock: systemClock,
    keepFreeBytes: Number.MAX_SAFE_INTEGER,
  });
  onTestFinished(() => store.close());
  const shortage = `nothing new is executed: the disk of ${path} has `;
  await expect(store.claim(newRequest())).rejects.toMatchObject({
    name: 'StoreUnavailable',
    message: expect.stringContaining(shortage),
    maybeWritten: false,
  });
  await expect(store.takeOver(duplicateOf(doubtful), doubtful.fingerprint)).rejects.toThrow(shortage);
  expect(await store.claim(duplicateOf(begun))).toEqual({ kind: 'in_flight' });
  expect(await store.settle(begun, paid())).toBe('ok');
  expect(await store.claim(duplicateOf(begun))).toMatchObject({ kind: 'settled' });
  expect(await store.health()).toMatchObject({ ok: true, warnings: [expect.stringContaining(shortage)] });
});
