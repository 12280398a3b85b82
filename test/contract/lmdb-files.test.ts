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

function openLmdb(path: string): LmdbStore {
  const store = new LmdbStore({ path, ...LONG, clock: systemClock });
  onTestFinished(() => store.close());
  return store;
}

const modeOf = (path: string) => (statSync(path).mode & 0o777).toString(8);

describe('the files of the embedded store', () => {
  it('are for this user only, whatever the umask', async () => {
    const umask = process.umask(0);
    onTestFinished(() => void process.umask(umask));
    const path = join(folder(), 'new', 'data');
    await bring(openLmdb(path), 'claimed');
    expect(modeOf(path)).toBe('700');
    const modes = readdirSync(path).map((name) => modeOf(join(path, name)));
    expect(modes.length).toBeGreaterThan(0);
    expect(new Set(modes)).toEqual(new Set(['600']));
  });

  it('cannot lie where a file is in the way, and the error names the place', () => {
    const file = join(folder(), 'file');
    writeFileSync(file, '');
    expect(() => openLmdb(file)).toThrow(file);
    expect(() => openLmdb(join(file, 'data'))).toThrow(join(file, 'data'));
  });

  it('cannot lie in a folder that takes no files, and the error names the place', () => {
    // Not even root can make a file there.
    expect(() => openLmdb('/proc')).toThrow('/proc');
  });

  it('are missed by the health check', async () => {
    const path = join(folder(), 'data');
    const store = openLmdb(path);
    expect(await store.health()).toEqual({ ok: true, detail: 'lmdb', warnings: [] });
    rmSync(path, { recursive: true });
    expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining(path) });
  });

  it('answer nothing after close', async () => {
    const store = openLmdb(folder());
    const owner = await bring(store, 'executing');
    await store.close();
    await expect(store.claim(duplicateOf(owner))).rejects.toThrow(StoreUnavailable);
    await expect(store.begin(owner)).rejects.toThrow(StoreUnavailable);
    await expect(store.get(owner.scope)).rejects.toThrow(StoreUnavailable);
    expect((await store.health()).ok).toBe(false);
  });
});
