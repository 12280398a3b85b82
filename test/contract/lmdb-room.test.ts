import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { LmdbStore } from '../../src/idempotency/stores/lmdb/lmdb-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { sweepLmdb } from '../support/lmdb-files.ts';
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

// Whatever merchants and the sweep would have it write could fail, and end the gateway again and again.
test.each(['claimed', 'executing'] as const)(
  'nor is one %s without an owner marked or taken over, nor swept away',
  async (stage) => {
    const path = mkdtempSync(join(tmpdir(), 'lmdb-room-'));
    onTestFinished(() => rmSync(path, { recursive: true, force: true }));
    const times = { ...LONG, leaseMs: 1 };
    const roomy = await LmdbStore.open({ path, ...times, clock: systemClock });
    const owner = await bring(roomy, stage);
    await roomy.close();

    const keepFreeBytes = Number.MAX_SAFE_INTEGER;
    const store = await LmdbStore.open({ path, ...times, clock: systemClock, keepFreeBytes });
    onTestFinished(() => store.close());
    await expect(store.claim(duplicateOf(owner))).rejects.toMatchObject({ maybeWritten: false });
    expect(await store.get(owner.scope)).toMatchObject({ state: stage, token: owner.token });
    expect(await sweepLmdb(path, 0, false)).toBe(0);
    expect(await sweepLmdb(path, 0)).toBe(1);
  },
);
