import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { LmdbStore } from '../../src/idempotency/stores/lmdb/lmdb-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { LONG } from '../support/open-store.ts';
import { duplicateOf } from '../support/requests.ts';
import { bring } from './states.ts';

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'lmdb-files-'));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

async function openLmdb(path: string): Promise<LmdbStore> {
  const store = await LmdbStore.open({ path, ...LONG, clock: systemClock });
  onTestFinished(() => store.close());
  return store;
}

const modeOf = (path: string) => (statSync(path).mode & 0o777).toString(8);

describe('the files of the embedded store', () => {
  it('are for this user only, whatever the umask', async () => {
    const umask = process.umask(0);
    onTestFinished(() => void process.umask(umask));
    const path = join(folder(), 'new', 'data');
    await bring(await openLmdb(path), 'claimed');
    expect(modeOf(path)).toBe('700');
    const entries = readdirSync(path, { recursive: true, withFileTypes: true });
    const modes = entries.map((entry) => [entry.isDirectory(), modeOf(join(entry.parentPath, entry.name))]);
    expect(modes.length).toBeGreaterThan(3);
    for (const [isFolder, mode] of modes) expect(mode).toBe(isFolder ? '700' : '600');
  });

  it('cannot lie where a file is in the way, and the error names the place', async () => {
    const file = join(folder(), 'file');
    writeFileSync(file, '');
    await expect(openLmdb(file)).rejects.toThrow(file);
    await expect(openLmdb(join(file, 'data'))).rejects.toThrow(join(file, 'data'));
  });

  it('cannot lie in a folder that takes no files, and the error names the place', async () => {
    // Not even root can make a file there.
    await expect(openLmdb('/proc')).rejects.toThrow('/proc');
  });

  it('are missed by the health check', async () => {
    const path = join(folder(), 'data');
    const store = await openLmdb(path);
    expect(await store.health()).toEqual({ ok: true, detail: 'lmdb', warnings: [] });
    rmSync(path, { recursive: true });
    expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining(path) });
  });

  it('answer nothing after close', async () => {
    const store = await openLmdb(folder());
    const owner = await bring(store, 'executing');
    await store.close();
    await expect(store.claim(duplicateOf(owner))).rejects.toThrow(StoreUnavailable);
    await expect(store.begin(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.get(owner.scope)).rejects.toThrow(StoreUnavailable);
    expect((await store.health()).ok).toBe(false);
  });
});
