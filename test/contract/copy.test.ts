import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it, onTestFinished } from 'vitest';
import { Copy, type CopyReport } from '../../src/ledger/copy/copy.ts';
import { systemClock } from '../../src/lib/clock.ts';
import type { Execution, Store } from '../../src/store/contract.ts';
import { databaseOf, openStore, type StorePlace, type StoreTimes } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { track } from '../support/spawn.ts';
import { until } from '../support/until.ts';
import { openSide } from './copy-side.ts';
import { recordKeyOf } from './redis-damages.ts';
import { bring, replayOf } from './states.ts';

const root = mkdtempSync(join(tmpdir(), 'copy-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));
const redis = await startRedis();

const sqlite = (): StorePlace => ({ kind: 'sqlite', path: mkdtempSync(join(root, 'data-')) });
const inRedis = (): StorePlace => ({ kind: 'redis', url: redis.url, prefix: randomUUID() });

const directions: [name: string, from: () => StorePlace, to: () => StorePlace][] = [
  ['sqlite to redis', sqlite, inRedis],
  ['redis to sqlite', inRedis, sqlite],
  ['redis to redis', inRedis, inRedis],
  ['sqlite to sqlite', sqlite, sqlite],
];
const twoWays = directions.slice(0, 2);

/** An old and a new store with their gateways' connections, which are open before anything is copied. */
class Move implements AsyncDisposable {
  readonly from: StorePlace;
  readonly to: StorePlace;
  readonly old: Store;
  readonly new: Store;

  static async open(from: StorePlace, to: StorePlace, times: Partial<StoreTimes> = {}): Promise<Move> {
    return new Move(from, to, await openStore(from, times), await openStore(to, times));
  }

  private constructor(from: StorePlace, to: StorePlace, oldStore: Store, newStore: Store) {
    this.from = from;
    this.to = to;
    this.old = oldStore;
    this.new = newStore;
  }

  /** One run. `at` is called at each line of its progress, and the run goes on when it resolves. */
  async run(at: (line: string) => unknown = () => {}): Promise<CopyReport> {
    return await this.with(at, (copy) => copy.run());
  }

  async undo(): Promise<void> {
    await this.with(
      () => {},
      (copy) => copy.undo(),
    );
  }

  async with<T>(at: (line: string) => unknown, work: (copy: Copy) => Promise<T>): Promise<T> {
    const [from, to] = [await openSide(this.from), await openSide(this.to)];
    const onProgress = async (line: string) => void (await at(line));
    try {
      // The tests share a process, so a round may take long.
      const longestPauseMs = 60_000;
      return await work(new Copy({ from, to, clock: systemClock, onProgress, longestPauseMs }));
    } finally {
      await Promise.all([from.close(), to.close()]);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.old.close(), this.new.close()]);
  }
}

/** Runs a copy in a process of its own and kills it at the line that begins with `stopAt`. */
async function killedAt(stopAt: string, { from, to }: Move): Promise<void> {
  const script = fileURLToPath(new URL('./copy-worker.ts', import.meta.url));
  const child = track(
    spawn(process.execPath, [script, JSON.stringify({ from, to, stopAt })], {
      stdio: ['pipe', 'pipe', 'inherit'],
    }),
  );
  await once(child.stdout as NodeJS.ReadableStream, 'data');
  const exited = once(child, 'exit');
  child.kill('SIGKILL');
  await exited;
}

const note = { by: 'ada', reason: 'in the books' };
const tombstone = { kind: 'tombstone', status: 201 } as const;

/** One execution in each state, and what a retry of it is answered. */
async function inEveryState(store: Store) {
  const completed = await bring(store, 'completed', newRequest({ key: `ö ${randomUUID()}`.slice(2) }));
  const large = await bring(store, 'executing');
  await store.complete(large, tombstone);
  const gaveUp = await bring(store, 'in_doubt');
  const late = await bring(store, 'in_doubt');
  await store.complete(late, paid('late'));
  const resolved = await bring(store, 'in_doubt');
  await store.resolve(resolved.scope, resolved.token, { as: 'completed', completion: paid('books') }, note);
  const freed = await bring(store, 'in_doubt');
  await store.resolve(freed.scope, freed.token, { as: 'released' }, note);
  const executing = await bring(store, 'executing');
  return { completed, large, gaveUp, late, resolved, freed, executing };
}

describe.each(twoWays)('a copy from %s', (_name, from, to) => {
  it('takes encrypted responses as they are: gateways with the key replay them, others cannot read them', async () => {
    await using move = await Move.open(from(), to());
    const encryption = { keys: [{ id: 'one', secret: 'ab'.repeat(32) }] };
    const [writer, reader] = [
      await openStore(move.from, {}, systemClock, 'gateway-test', encryption),
      await openStore(move.to, {}, systemClock, 'gateway-test', encryption),
    ];
    onTestFinished(async () => void (await Promise.all([writer.close(), reader.close()])));
    const sealed = await bring(writer, 'completed');
    await move.run();
    expect(await reader.get(sealed.scope)).toEqual(await writer.get(sealed.scope));
    expect(await reader.start(duplicateOf(sealed))).toMatchObject({ kind: 'completed' });
    await expect(move.new.start(duplicateOf(sealed))).rejects.toThrow('it is encrypted with the key "one"');
  });
});

describe.each(directions)('a copy from %s', (_name, from, to) => {
  it('has every record, in its state and with its lifetimes, and every audit trail', async () => {
    await using move = await Move.open(from(), to());
    const owners = await inEveryState(move.old);
    const { executing, freed } = owners;
    const report = await move.run(async (line) => {
      // Its owner is alive, so the run would follow it.
      if (line.startsWith('opened')) await move.old.complete(executing, paid('followed'));
    });
    expect(report).toMatchObject({ followed: { completed: 1, released: 0, inDoubt: 1, stale: 0 } });
    const { operations } = await move.new.countDoubts();
    expect([...operations]).toEqual([['withdraw', { inDoubt: 1, ownerGone: 0 }]]);
    for (const { scope } of Object.values(owners)) {
      expect(await move.new.get(scope)).toEqual(await move.old.get(scope));
      expect(await move.new.audit(scope)).toEqual(await move.old.audit(scope));
    }
    expect(await move.new.audit(freed.scope)).toMatchObject([note]);
    expect(await move.new.start(duplicateOf(executing))).toEqual(replayOf(paid('followed'), executing));
    expect(await move.new.start(duplicateOf(freed))).toEqual({ kind: 'started' });
    // The owner of this one gave up, so it can be resolved at once.
    const { scope, token } = owners.gaveUp;
    expect(await move.new.resolve(scope, token, { as: 'released' }, note)).toBe('ok');
    // How much longer each record lives, as a third store sees it.
    const [before, after] = [await openSide(move.from), await openSide(move.to)];
    const kept = Object.values(owners).filter((owner) => owner !== freed && owner !== owners.gaveUp);
    const scopes = kept.map((owner) => owner.scope);
    const lifeOf = async (side: typeof before) =>
      (await side.read(scopes)).map((read) => ('record' in read ? read.record?.expiresInMs : undefined));
    const [expected, copied] = [await lifeOf(before), await lifeOf(after)];
    for (const [i, lifeMs] of copied.entries())
      expect(Math.abs((lifeMs ?? 0) - (expected[i] ?? 0))).toBeLessThan(2000);
    await Promise.all([before.close(), after.close()]);
  });
});

/** A run that takes over watches the other one for two seconds, so these tests wait together. */
const PATIENCE = { timeout: 90_000 };

describe.each(twoWays)('a copy from %s', (_name, from, to) => {
  it('finds what is started, completed and released while it runs', async () => {
    await using move = await Move.open(from(), to());
    const [changed, freed] = [await bring(move.old, 'executing'), await bring(move.old, 'executing')];
    const added: Execution[] = [];
    await move.run(async (line) => {
      if (line.startsWith('copied')) {
        await move.old.complete(changed, paid('changed'));
        await move.old.release(freed);
        added.push(await bring(move.old, 'completed'));
      }
      if (line.startsWith('round 1:'))
        added.push(await bring(move.old, 'completed'), await bring(move.old, 'in_doubt'));
      if (line.startsWith('sealed')) await expect(move.old.start(newRequest())).rejects.toThrow('moved');
    });
    expect(await move.new.start(duplicateOf(changed))).toEqual(replayOf(paid('changed'), changed));
    expect(await move.new.get(freed.scope)).toBeUndefined();
    expect(added.length).toBe(3);
    for (const { scope } of added) expect(await move.new.get(scope)).toEqual(await move.old.get(scope));
  });

  it('writes what owners on the old store do after the switch, and keeps their leases until then', async () => {
    const leaseMs = 3000;
    await using move = await Move.open(from(), to(), { leaseMs });
    const [completed, released, gaveUp] = [
      await bring(move.old, 'executing'),
      await bring(move.old, 'executing'),
      await bring(move.old, 'executing'),
    ];
    const owners = [completed, released, gaveUp];
    const renewing = setInterval(() => {
      for (const owner of owners) void move.old.renew(owner).catch(() => {});
    }, 100);
    let isOpened = false;
    const running = move.run((line) => {
      isOpened ||= line.startsWith('opened');
    });
    try {
      await until(() => isOpened);
      const openedMs = performance.now();
      while (performance.now() - openedMs < 2 * leaseMs)
        for (const owner of owners) {
          expect(await move.new.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
          // SQLite answers without a turn of the event loop, and the renewals need one.
          await sleep(10);
        }
    } finally {
      clearInterval(renewing);
    }
    expect(await move.old.complete(completed, paid('late'))).toBe('ok');
    expect(await move.old.release(released)).toBe('ok');
    expect(await move.old.markInDoubt(gaveUp)).toBe('ok');
    expect((await running).followed).toEqual({ completed: 1, released: 1, inDoubt: 1, stale: 0 });
    expect(await move.new.start(duplicateOf(completed))).toEqual(replayOf(paid('late'), completed));
    expect(await move.new.start(duplicateOf(released))).toEqual({ kind: 'started' });
    expect(await move.new.start(duplicateOf(gaveUp))).toMatchObject({ kind: 'in_doubt' });
  });

  it('a dead owner is in doubt on the new store, and a later run heals its key when it was only paused', async () => {
    await using move = await Move.open(from(), to(), { leaseMs: 300 });
    const [paused, freed, restarted, again] = [
      await bring(move.old, 'executing'),
      await bring(move.old, 'executing'),
      await bring(move.old, 'executing'),
      await bring(move.old, 'executing'),
    ];
    expect((await move.run()).followed).toMatchObject({ inDoubt: 4 });
    for (const owner of [paused, freed, restarted, again])
      await until(async () => (await move.new.start(duplicateOf(owner))).kind === 'in_doubt');
    const successor = duplicateOf(restarted);
    expect(await move.new.restart(successor)).toBe('ok');
    expect(await move.new.resolve(again.scope, again.token, { as: 'released' }, note)).toBe('ok');
    const own = await bring(move.new, 'executing', duplicateOf(again));
    expect(await move.old.release(again)).toBe('ok');
    expect(await move.old.complete(paused, paid('late'))).toBe('ok');
    expect(await move.old.release(freed)).toBe('ok');
    expect(await move.old.complete(restarted, paid('late'))).toBe('ok');
    const report = await move.run();
    expect(report.pauseMs).toBeUndefined();
    expect(report.followed).toEqual({ completed: 1, released: 1, inDoubt: 0, stale: 1 });
    expect(await move.new.start(duplicateOf(paused))).toEqual(replayOf(paid('late'), paused));
    expect(await move.new.get(paused.scope)).toMatchObject({ wasInDoubt: true });
    expect(await move.new.start(duplicateOf(freed))).toEqual({ kind: 'started' });
    expect(await move.new.get(restarted.scope)).toMatchObject({ state: 'executing', token: successor.token });
    expect(await move.new.get(own.scope)).toMatchObject({ state: 'executing', token: own.token });
  });

  it.concurrent.each(['marked', 'copied', 'round 1', 'sealed', 'opened'])(
    'is finished by another run after it was killed at: %s',
    PATIENCE,
    async (stopAt) => {
      await using move = await Move.open(from(), to());
      const owners = await inEveryState(move.old);
      const { executing, gaveUp } = owners;
      const released = await bring(move.old, 'executing');
      await killedAt(stopAt, move);
      // One of the two serves, or none. Never both.
      const probe = newRequest();
      const answers = await Promise.allSettled([move.old.start(probe), move.new.start(probe)]);
      // The next run would wait for its owner.
      await move.old.release(probe);
      const serving = answers.map(({ status }) => status === 'fulfilled');
      expect(serving).toEqual(
        stopAt === 'opened' ? [false, true] : stopAt === 'sealed' ? [false, false] : [true, false],
      );
      await move.old.complete(executing, paid('after the kill'));
      await move.old.release(released);
      const added = stopAt === 'opened' || stopAt === 'sealed' ? [] : [await bring(move.old, 'completed')];
      await move.run();
      for (const { scope } of [...Object.values(owners), ...added])
        expect(await move.new.get(scope)).toEqual(await move.old.get(scope));
      expect(await move.new.start(duplicateOf(released))).toEqual({ kind: 'started' });
      expect(await move.new.start(duplicateOf(gaveUp))).toMatchObject({ kind: 'in_doubt' });
    },
  );

  it.concurrent.each(['marked', 'copied', 'sealed'])(
    'can be undone after it was killed at: %s',
    PATIENCE,
    async (stopAt) => {
      await using move = await Move.open(from(), to());
      const owners = await inEveryState(move.old);
      await killedAt(stopAt, move);
      await move.undo();
      const started = await bring(move.old, 'completed');
      expect(await move.old.health()).toMatchObject({ ok: true, warnings: [] });
      expect((await move.new.list({ inDoubt: false, limit: 10 })).records).toEqual([]);
      expect((await move.new.countDoubts()).operations.size).toBe(0);
      expect(await move.new.audit(owners.resolved.scope)).toEqual([]);
      await expect(move.undo()).rejects.toThrow('no copy to undo');
      // The next copy begins anew.
      await move.old.complete(owners.executing, paid());
      await move.run();
      for (const { scope } of [owners.completed, started])
        expect(await move.new.get(scope)).toEqual(await move.old.get(scope));
    },
  );

  it('cannot be undone when the new store was opened', async () => {
    await using move = await Move.open(from(), to());
    await move.run();
    await expect(move.undo()).rejects.toThrow('cannot be undone');
    await expect(move.old.start(newRequest())).rejects.toThrow('moved');
  });

  it('is refused while another run works, and the other goes on', async () => {
    await using move = await Move.open(from(), to());
    const owner = await bring(move.old, 'completed');
    let second: unknown;
    await move.run(async (line) => {
      if (line.startsWith('copied')) second = await move.run().catch((error: unknown) => error);
    });
    expect(second).toMatchObject({ message: expect.stringContaining('another run') });
    expect(await move.new.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
  });

  it('a record that cannot be read stops it before the seal, with the name of its scope', async () => {
    await using move = await Move.open(from(), to());
    const { scope } = await bring(move.old, 'completed');
    if (move.from.kind === 'redis') await redis.admin.setrange(recordKeyOf(move.from, scope), 1, 'x');
    else {
      const database = new DatabaseSync(databaseOf(move.from));
      database.prepare("UPDATE records SET state = 'x' WHERE scope = ?").run(Buffer.from(scope, 'hex'));
      database.close();
    }
    await expect(move.run()).rejects.toThrow(scope);
    expect(await move.old.start(newRequest())).toEqual({ kind: 'started' });
    await expect(move.new.start(newRequest())).rejects.toThrow('being');
  });

  it('refuses a new store that has records, and changes neither', async () => {
    await using move = await Move.open(from(), to());
    const [first, second] = [await bring(move.old, 'completed'), await bring(move.new, 'completed')];
    await expect(move.run()).rejects.toThrow('has records');
    for (const store of [move.old, move.new])
      expect(await store.start(newRequest())).toEqual({ kind: 'started' });
    expect(await move.new.get(first.scope)).toBeUndefined();
    expect(await move.new.get(second.scope)).toMatchObject({ state: 'completed' });
  });

  it('refuses a store as its own copy', async () => {
    const place = from();
    await using move = await Move.open(place, place);
    await expect(move.run()).rejects.toThrow('same store');
    expect(await move.old.start(newRequest())).toEqual({ kind: 'started' });
  });

  it('prepared, the new store waits for the copy while the old one serves', async () => {
    await using move = await Move.open(from(), to());
    await move.with(
      () => {},
      (copy) => copy.prepare(),
    );
    await expect(move.new.start(newRequest())).rejects.toThrow('being');
    expect(await move.new.health()).toMatchObject({ ok: false });
    const owner = await bring(move.old, 'completed');
    await move.run();
    expect(await move.new.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
    expect(await move.new.health()).toMatchObject({ ok: true, warnings: [] });
  });
});

it('a source that changes faster than it can be copied is not sealed', async () => {
  await using move = await Move.open(sqlite(), inRedis());
  const [from, to] = [await openSide(move.from), await openSide(move.to)];
  const readLog = from.readLog.bind(from);
  from.readLog = async (after) => {
    await sleep(110);
    return await readLog(after);
  };
  const copy = new Copy({ from, to, clock: systemClock, longestPauseMs: 100 });
  await expect(copy.run()).rejects.toThrow('Nothing was switched');
  expect(await move.old.start(newRequest())).toEqual({ kind: 'started' });
  await Promise.all([from.close(), to.close()]);
});

it('a source that was emptied after the seal frees no key', async () => {
  await using move = await Move.open(inRedis(), sqlite());
  const owner = await bring(move.old, 'executing');
  const emptied = move.run(async (line) => {
    if (!line.startsWith('opened')) return;
    const keys = await redis.admin.keys(`${move.from.kind === 'redis' ? move.from.prefix : ''}:*`);
    await redis.admin.del(keys);
  });
  await expect(emptied).rejects.toThrow('lost the mark');
  expect(await move.new.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
});
