import { afterAll, describe, expect, it, onTestFinished } from 'vitest';
import { acceptStore } from '../../src/ledger/accept-store.ts';
import type { Store } from '../../src/ledger/ledger.ts';
import { StoreWatch } from '../../src/ledger/store-watch.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { type Execution, StoreUnavailable } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { openStore, type PostgresPlace, type StoreTimes } from '../support/open-store.ts';
import { newSchema, type PostgresServer, startPostgres, startStandby } from '../support/postgres-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeFolder } from '../support/sqlite-files.ts';
import { storeForTest } from '../support/stores.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

const TIMEOUT_MS = 1000;
const SHORT = { timeoutMs: TIMEOUT_MS };
/** Of one store: four write, and two read. */
const CONNECTIONS = 6;

/** A server and a standby that follows it. Nothing has to survive the machine. */
async function pair(settings: Record<string, string> = { synchronous_standby_names: '*' }) {
  const primary = await startPostgres({ fsync: 'off' });
  const standby = await startStandby(primary, { fsync: 'off' });
  await primary.set(settings);
  await until(async () => {
    const { rows } = await primary.admin.query(
      `SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'`,
    );
    return rows[0]?.sync_state === (settings.synchronous_standby_names ? 'sync' : 'async');
  });
  return { primary, standby };
}

/** How many backends of gateways the server has. */
const backendsOf = async ({ admin }: PostgresServer): Promise<number> =>
  (await admin.query(`SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = 'oncegate'`))
    .rows[0].n;

/** Resolves when so many transactions wait for a standby. */
const untilWaiting = ({ admin }: PostgresServer, number: number) =>
  until(
    async () =>
      (await admin.query(`SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)).rows.length >=
      number,
  );

/** Ends the waits of all transactions for a standby, so that they are visible and it does not have them. */
const endWaits = async (server: PostgresServer, how: 'pg_cancel_backend' | 'pg_terminate_backend') => {
  await untilWaiting(server, 1);
  await server.admin.query(`SELECT ${how}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`);
};

const untilAnswered = async <T>(write: () => Promise<T>) => await until(() => write().catch(() => undefined));
/** Takes back a start that is written, or will be. If the first answer is lost, a repetition finds nothing: `stale`. */
async function takeBackWritten(store: Store, owner: Execution) {
  const stateOf = async () => (await store.get(owner.recordId))?.state;
  expect(await untilAnswered(stateOf)).toBe('executing');
  await untilAnswered(() => store.takeBack(owner));
  expect(await untilAnswered(async () => ({ state: await stateOf() }))).toEqual({ state: undefined });
}
const failureOf = (act: Promise<unknown>) => act.catch((error: unknown) => error);

describe('with a synchronous standby', async () => {
  const { primary, standby } = await pair();
  const opened = async (times: Partial<StoreTimes> = SHORT) => {
    const place = await newSchema(primary);
    return { place, store: await storeForTest(place, times) };
  };
  /** The standby is away during `act`. */
  async function withoutStandby<T>(act: () => Promise<T>): Promise<T> {
    standby.freeze();
    try {
      return await act();
    } finally {
      standby.thaw();
    }
  }

  it('that is away, payouts fail at their time limit, reads go on, and no connection is added', async () => {
    const { place, store } = await opened();
    const [executing, completed] = [await bring(store, 'executing'), await bring(store, 'completed')];
    const waiting: Execution[] = [];
    // All but two are opened in the background.
    await until(async () => (await backendsOf(primary)) === CONNECTIONS);
    await withoutStandby(async () => {
      for (let round = 0; round < 2; round++) {
        const owners = Array.from({ length: 10 }, () => newRequest());
        const startedMs = performance.now();
        const answers = await Promise.all([
          ...owners.map((owner) => failureOf(store.start(owner))),
          failureOf(store.visit('protect')),
          failureOf(store.renew(executing)),
        ]);
        expect(performance.now() - startedMs).toBeLessThan(3 * TIMEOUT_MS);
        for (const answer of answers) expect(answer).toBeInstanceOf(StoreUnavailable);
        const unsent = answers.filter((answer) => !(answer as StoreUnavailable).maybeWritten);
        // What waits has all connections, so that nothing more was sent.
        if (round === 1) expect(unsent).toHaveLength(answers.length);
        waiting.push(...owners.filter((_, at) => (answers[at] as StoreUnavailable).maybeWritten));
        expect(await store.get(completed.recordId)).toMatchObject({ state: 'completed' });
        expect(await store.peek(executing)).toEqual({ kind: 'in_flight' });
        expect((await store.list({ inDoubt: false, limit: 100 })).records).toHaveLength(2);
        const health = await store.health();
        expect(health).toMatchObject({ ok: false, detail: `postgres: no answer within ${TIMEOUT_MS} ms` });
      }
      // Nobody sees what waits, and a start of the same key waits behind it.
      expect(await store.get((waiting[0] as Execution).recordId)).toBeUndefined();
      const other = await storeForTest(place, SHORT);
      expect(await other.start(duplicateOf(waiting[0] as Execution))).toEqual({ kind: 'in_flight' });
    });
    expect(await backendsOf(primary)).toBeLessThanOrEqual(2 * CONNECTIONS + 1);
    for (const owner of waiting) await takeBackWritten(store, owner);
    expect(await untilAnswered(() => store.start(newRequest()))).toEqual({ kind: 'started' });
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    await until(async () => (await store.health()).ok);
  });

  it.each(['pg_cancel_backend', 'pg_terminate_backend'] as const)(
    'whose wait is ended by %s, a write is perhaps written, and its answer waits until the standby has it',
    async (how) => {
      const { place, store } = await opened();
      const other = await storeForTest(place, SHORT);
      const owner = await bring(store, 'executing');
      const lost = newRequest();
      await withoutStandby(async () => {
        const writes = [failureOf(store.complete(owner, paid())), failureOf(store.start(lost))];
        await endWaits(primary, how);
        for (const failure of await Promise.all(writes))
          expect(failure).toMatchObject({ maybeWritten: true });
        // It is visible on this server.
        await until(async () => (await other.get(owner.recordId))?.state === 'completed');
        const asked = await Promise.all([
          failureOf(store.start(duplicateOf(owner))),
          failureOf(store.peek(duplicateOf(owner))),
          failureOf(other.start(duplicateOf(owner))),
          failureOf(other.complete(owner, paid())),
        ]);
        for (const answer of asked) expect(answer).toBeInstanceOf(StoreUnavailable);
      });
      expect(await untilAnswered(() => store.complete(owner, paid()))).toBe('ok');
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
      await takeBackWritten(store, lost);
    },
  );

  it('that comes back while the server is asked about a write without an answer, the next write keeps its connection', async () => {
    const { place, store: witness } = await opened();
    // The query for busy connections waits for a lock, and then finds all of them idle, as they were between the two writes.
    await primary.admin.query(`CREATE VIEW ${place.schema}.pg_stat_activity AS
        SELECT pid, 'idle' || pg_advisory_xact_lock_shared(7)::text AS state, xact_start, backend_xmin FROM pg_catalog.pg_stat_activity;
      CREATE ROLE asking LOGIN SUPERUSER; ALTER ROLE asking SET search_path = ${place.schema}, pg_catalog`);
    const url = new URL(primary.url);
    url.username = 'asking';
    // Longer than what happens while the server is asked.
    const timeoutMs = 3 * TIMEOUT_MS;
    const store = await storeForTest({ ...place, url: url.href }, { timeoutMs });
    const holder = await primary.admin.connect();
    onTestFinished(() => holder.release(true));
    await holder.query('SET synchronous_commit = off; SELECT pg_advisory_lock(7)');
    const first = newRequest();
    await withoutStandby(async () => {
      expect(await failureOf(store.start(first))).toMatchObject({ maybeWritten: true });
      await until(
        async () =>
          (await holder.query(`SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory'`)).rows.length >
          0,
      );
    });
    await until(async () => (await witness.get(first.recordId))?.state === 'executing');
    await withoutStandby(async () => {
      const writes: Promise<unknown>[] = [];
      // One on each connection.
      for (let number = 1; number <= 4; number++) {
        writes.push(failureOf(store.start(newRequest())));
        await untilWaiting(primary, number);
      }
      await holder.query('SELECT pg_advisory_unlock(7)');
      // Waits until it has been told, and who asks later is told the truth.
      await holder.query(`DROP VIEW ${place.schema}.pg_stat_activity`);
      for (const failure of await Promise.all(writes))
        expect(failure).toMatchObject({ message: `postgres: no answer within ${timeoutMs} ms` });
    });
  });

  it('a warning of a cancelled wait is heard, whatever the role and the language', async () => {
    const { place } = await opened();
    await primary.admin.query(
      `CREATE ROLE quiet LOGIN SUPERUSER; ALTER ROLE quiet SET client_min_messages = 'error'`,
    );
    const url = new URL(primary.url);
    url.username = 'quiet';
    const store = await storeForTest({ ...place, url: url.href }, SHORT);
    await withoutStandby(async () => {
      const start = failureOf(store.start(newRequest()));
      await endWaits(primary, 'pg_cancel_backend');
      expect(await start).toMatchObject({
        ...{ name: 'StoreUnavailable', maybeWritten: true },
        message: expect.stringContaining('canceling wait for synchronous replication'),
      });
    });
  });

  it('that is promoted, is found by a gateway whose connections to the old primary stay open', async () => {
    const { proxy, place } = await addressOf(primary);
    const store = await storeForTest(place, SHORT);
    const owner = await bring(store, 'executing');
    const { count } = await store.visit('protect');
    await standby.promote();
    proxy.aimAt(standby.port);
    // The old primary waits for a standby, for ever.
    expect(await failureOf(store.complete(owner, paid()))).toBeInstanceOf(StoreUnavailable);
    expect(await untilAnswered(() => store.complete(owner, paid()))).toBe('ok');
    const { rows } = await standby.admin.query(
      'SELECT state FROM oncegate.records WHERE merchant IS NOT NULL',
    );
    expect(rows).toEqual([{ state: 'completed' }]);
    // It has every write, so its identity is that of the primary before.
    expect(await store.readIdentity('protect')).toMatchObject({ count });
  });
});

it('a server that begins to wait for its standby while gateways run, a result that is only visible is not answered', async () => {
  const { primary, standby } = await pair({ synchronous_standby_names: '' });
  const store = await storeForTest(await newSchema(primary), SHORT);
  const owner = await bring(store, 'executing');
  await primary.set({ synchronous_standby_names: '*' });
  await until(
    async () =>
      (await primary.admin.query(`SELECT FROM pg_stat_replication WHERE sync_state = 'sync'`)).rowCount,
  );
  standby.freeze();
  const complete = failureOf(store.complete(owner, paid()));
  await endWaits(primary, 'pg_terminate_backend');
  expect(await complete).toMatchObject({ maybeWritten: true });
  expect(await failureOf(store.peek(duplicateOf(owner)))).toBeInstanceOf(StoreUnavailable);
  standby.thaw();
  expect(await untilAnswered(() => store.peek(duplicateOf(owner)))).toEqual(replayOf(paid(), owner));
});

/** An address that leads to one server and then to another. */
async function addressOf(server: PostgresServer) {
  const proxy = await startProxy(server.port);
  const place: PostgresPlace = {
    kind: 'postgres',
    url: `postgres://oncegate@${proxy.host}:${proxy.port}/postgres`,
    schema: 'oncegate',
  };
  return { proxy, place };
}

describe('a failover', () => {
  it('to the synchronous standby in the middle of payouts loses nothing and starts nothing twice', async () => {
    const { primary, standby } = await pair();
    const { proxy, place } = await addressOf(primary);
    const stores = [await storeForTest(place, SHORT), await storeForTest(place, SHORT)];
    const started = new Map<string, number>();
    const completed: Execution[] = [];
    let isOver = false;
    /** Pays under a key until its completion is stored, as the engine does. */
    const pay = async (number: number) => {
      const store = stores[number % 2] as (typeof stores)[0];
      let first: Execution | undefined;
      while (!isOver || first) {
        first ??= newRequest();
        const owner = duplicateOf(first);
        const answer = await store.start(owner).catch((error: unknown) => error as StoreUnavailable);
        if (answer instanceof StoreUnavailable) {
          if (answer.maybeWritten) await untilAnswered(() => store.takeBack(owner));
          continue;
        }
        if (answer.kind === 'started') {
          started.set(owner.recordId, (started.get(owner.recordId) ?? 0) + 1);
          await untilAnswered(() => store.complete(owner, paid(owner.recordId)));
          completed.push(owner);
        }
        first = undefined;
      }
    };
    const merchants = Array.from({ length: 16 }, (_, number) => pay(number));
    await until(async () => completed.length > 100);
    // The primary does not end: it has no standby any more, and is reached no more.
    await standby.promote();
    proxy.aimAt(standby.port);
    proxy.cut();
    const before = completed.length;
    await until(async () => completed.length > before + 100);
    isOver = true;
    await Promise.all(merchants);
    expect([...started.values()].filter((times) => times > 1)).toEqual([]);
    for (const owner of completed)
      expect(await stores[0]?.start(duplicateOf(owner))).toEqual(replayOf(paid(owner.recordId), owner));
  });

  describe('to a standby that is not synchronous', async () => {
    /** A key that is started and completed, a failover that loses it, and two gateways of which one may lose it. */
    const lost = await (async () => {
      const { primary, standby } = await pair({ synchronous_standby_names: '' });
      const { proxy, place } = await addressOf(primary);
      const store = await openStore(place, SHORT);
      const watched = async (refuses: boolean) => {
        const told: string[] = [];
        const emit = emitTo({ store_changed: ({ warning }) => told.push(warning) });
        const file = `${storeFolder()}/identity.json`;
        const options = {
          store,
          mode: 'protect' as const,
          warnForMs: 60_000,
          clock: systemClock,
          emit,
          file,
        };
        const watch = await StoreWatch.open({ ...options, refuses });
        await watch.visit();
        return { told, options, watch };
      };
      const [refusing, losing, late] = [await watched(true), await watched(false), await watched(true)];
      await until(async () => {
        const { rows } = await standby.admin.query("SELECT cause FROM oncegate.records WHERE id = ''");
        return rows[0]?.cause === '3';
      });
      const dangers = (await store.health()).warnings;
      await standby.kill();
      const owner = await bring(store, 'completed');
      await primary.kill();
      await standby.start();
      await standby.promote();
      proxy.aimAt(standby.port);
      await until(async () => (await store.health()).ok);
      await refusing.watch.visit();
      await losing.watch.visit();
      // It was away during the failover.
      const restarted = await StoreWatch.open({ ...late.options, refuses: true });
      return { store, refusing, losing, restarted, dangers, again: duplicateOf(owner) };
    })();
    afterAll(() => lost.store.close());

    it('is noticed by a gateway that compares after one that may lose it has visited the store', () => {
      expect(String(lost.restarted.refusal)).toMatch(/the store is older than it was/);
    });

    it('is noticed by the identity of the store, and refuses every start', async () => {
      const { dangers, refusing } = lost;
      const { watch, told, options } = refusing;
      expect(dangers).toContainEqual(expect.stringMatching(/1 standby and no synchronous_standby_names/));
      expect(String(watch.refusal)).toMatch(/the store is older than it was/);
      expect(told).toHaveLength(1);
      const again = { ...options, refuses: true };
      expect(await acceptStore(again, { by: 'ada', reason: 'the books are complete' })).toMatch(/older/);
      const later = await StoreWatch.open(again);
      await later.visit();
      expect(later.refusal).toBeUndefined();
    });

    it('loses a payout, which runs a second time, if mayLoseOnFailover says so', async () => {
      const { store, losing, again } = lost;
      const { watch, told } = losing;
      expect(told).toEqual([expect.stringMatching(/the store is older than it was/)]);
      expect(watch.refusal).toBeUndefined();
      expect(await store.start(again)).toEqual({ kind: 'started' });
    });
  });
});
