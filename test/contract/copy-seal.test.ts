import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import type { Store } from '../../src/store/contract.ts';
import type { Mark, MarkState } from '../../src/store/copy-mark.ts';
import type { CopySide } from '../../src/store/copy-side.ts';
import { openStore, type StorePlace, type StoreTimes } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { openSide } from './copy-side.ts';
import { bring, replayOf } from './states.ts';

const root = mkdtempSync(join(tmpdir(), 'copy-seal-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));
const redis = await startRedis();

const places: Record<string, () => StorePlace> = {
  sqlite: () => ({ kind: 'sqlite', path: mkdtempSync(join(root, 'data-')) }),
  redis: () => ({ kind: 'redis', url: redis.url, prefix: randomUUID() }),
};

/** A store that was open before its mark was set, as that of a running gateway. */
class Marked implements AsyncDisposable {
  readonly store: Store;
  readonly side: CopySide;
  #mark: Mark | undefined;

  static async open(place: StorePlace, times: Partial<StoreTimes> = {}): Promise<Marked> {
    return new Marked(await openStore(place, times), await openSide(place));
  }

  private constructor(store: Store, side: CopySide) {
    this.store = store;
    this.side = side;
  }

  async mark(state: MarkState | undefined): Promise<void> {
    const mark: Mark | undefined = state && { state, copyId: 'copy-1', runId: 'run-1' };
    expect(await this.side.changeMark(this.#mark, mark)).toBe(true);
    this.#mark = mark;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.store.close(), this.side.close()]);
  }
}

const note = { by: 'ada', reason: 'in the books' };
const refusal = { name: 'StoreUnavailable', maybeWritten: false };

describe.each(Object.entries(places))('%s with the mark of a copy', (_kind, place) => {
  describe.each(['moved', 'receiving', 'undoing'] as const)('%s', (state) => {
    it('starts nothing, and says so before anything was written', async () => {
      await using marked = await Marked.open(place());
      const { store } = marked;
      const request = newRequest();
      await bring(store, 'completed');
      await marked.mark(state);
      await expect(store.start(request)).rejects.toMatchObject(refusal);
      expect(await store.get(request.scope)).toBeUndefined();
      expect(await store.peek(request)).toEqual({ kind: 'absent' });
      await marked.mark(undefined);
      expect(await store.start(request)).toEqual({ kind: 'started' });
    });

    it('restarts and resolves nothing', async () => {
      await using marked = await Marked.open(place());
      const { store } = marked;
      const doubtful = await bring(store, 'in_doubt');
      await marked.mark(state);
      const before = await store.get(doubtful.scope);
      await expect(store.restart(duplicateOf(doubtful))).rejects.toMatchObject(refusal);
      for (const resolution of [{ as: 'released' }, { as: 'completed', completion: paid() }] as const)
        await expect(store.resolve(doubtful.scope, doubtful.token, resolution, note)).rejects.toMatchObject(
          refusal,
        );
      expect(await store.get(doubtful.scope)).toEqual(before);
      expect(await store.audit(doubtful.scope)).toEqual([]);
    });

    it('leaves the record of a dead owner as it is', async () => {
      await using marked = await Marked.open(place(), { leaseMs: 50 });
      const { store } = marked;
      const owner = await bring(store, 'executing');
      await marked.mark(state);
      await until(async () => (await store.peek(owner)).kind === 'in_doubt');
      await expect(store.start(duplicateOf(owner))).rejects.toMatchObject(refusal);
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing' });
    });

    it('answers what it knows: replays, and keys in flight', async () => {
      await using marked = await Marked.open(place());
      const { store } = marked;
      const [completed, executing] = [await bring(store, 'completed'), await bring(store, 'executing')];
      await marked.mark(state);
      expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
      expect(await store.start(duplicateOf(executing))).toEqual({ kind: 'in_flight' });
    });

    it('takes what owners write about executions that were started before', async () => {
      await using marked = await Marked.open(place());
      const { store } = marked;
      const owners = await Promise.all([1, 2, 3].map(() => bring(store, 'executing')));
      const [first, second, third] = owners as [
        (typeof owners)[0] & {},
        (typeof owners)[0] & {},
        (typeof owners)[0] & {},
      ];
      await marked.mark(state);
      expect(await store.renew(first)).toBe('ok');
      // The refused start shares a batch with the others.
      const [refused, ...written] = await Promise.all([
        store.start(newRequest()).catch((error: unknown) => error),
        store.complete(first, paid()),
        store.release(second),
        store.markInDoubt(third),
      ]);
      expect(refused).toMatchObject(refusal);
      expect(written).toEqual(['ok', 'ok', 'ok']);
      expect(await store.get(first.scope)).toMatchObject({ state: 'completed' });
      expect(await store.get(second.scope)).toBeUndefined();
      expect(await store.get(third.scope)).toMatchObject({ state: 'in_doubt' });
    });

    it('is not ready', async () => {
      await using marked = await Marked.open(place());
      expect(await marked.store.health()).toMatchObject({ ok: true });
      await marked.mark(state);
      expect(await marked.store.health()).toMatchObject({
        ok: false,
        isClosed: true,
        detail: expect.stringContaining('store'),
      });
      await marked.mark('opened');
      expect(await marked.store.health()).toMatchObject({ ok: true, warnings: [] });
      expect(await marked.store.start(newRequest())).toEqual({ kind: 'started' });
    });
  });

  it('copying: logs each start, serves, and warns', async () => {
    await using marked = await Marked.open(place());
    const { store, side } = marked;
    await bring(store, 'completed');
    await marked.mark('copying');
    const owner = await bring(store, 'completed');
    const second = await bring(store, 'executing');
    expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
    const { scope, token } = owner;
    const entries = [
      { scope, token },
      { scope: second.scope, token: second.token },
    ];
    expect(await side.readLog(0)).toEqual(entries);
    expect(await side.readLog(1)).toEqual(entries.slice(1));
    expect(await store.health()).toMatchObject({ ok: true, warnings: [expect.stringContaining('--undo')] });
  });

  it.each(['copying', 'moved'] as const)('%s: logs a complete that creates its record', async (state) => {
    await using marked = await Marked.open(place());
    const { store, side } = marked;
    await marked.mark(state);
    const lost = newRequest();
    expect(await store.complete(lost, paid())).toBe('ok');
    expect(await side.readLog(0)).toEqual([{ scope: lost.scope, token: lost.token }]);
  });

  it('the log is empty when a copy begins, and keeps its entries when a run takes over or seals', async () => {
    await using marked = await Marked.open(place());
    const { store, side } = marked;
    const logged = async () => (await side.readLog(0)).length;
    await marked.mark('copying');
    await bring(store, 'executing');
    await marked.mark('copying');
    expect(await logged()).toBe(1);
    await marked.mark('moved');
    expect(await logged()).toBe(1);
    await marked.mark(undefined);
    expect(await logged()).toBe(0);
  });

  it('no mark is changed unless it is the expected one, and a run that was replaced writes nothing', async () => {
    await using marked = await Marked.open(place());
    const { side, store } = marked;
    await marked.mark('receiving');
    const mine: Mark = { state: 'receiving', copyId: 'copy-1', runId: 'run-1' };
    const later: Mark = { ...mine, runId: 'run-2' };
    expect(await side.changeMark(undefined, mine)).toBe(false);
    expect(await side.changeMark(mine, later)).toBe(true);
    expect(await side.changeMark(mine, later)).toBe(false);
    const { scope } = newRequest();
    const snapshot = { scope, audit: [], auditExpiresInMs: 0 };
    await expect(side.write(mine, [{ snapshot, expected: 'anything', withAudit: true }])).rejects.toThrow(
      'another run',
    );
    expect(await side.write(later, [{ snapshot, expected: 'absent', withAudit: true }])).toEqual([true]);
    expect(await store.get(scope)).toBeUndefined();
  });
});
