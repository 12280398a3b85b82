/** Disks that are full under PostgreSQL: what the store answers is true, and it goes on when there is space again. */
import { expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { Completion } from '../../src/lib/exchange.ts';
import { type Execution, StoreUnavailable } from '../../src/store/types.ts';
import { type PostgresServer, SHORT_LOG_FILES, TABLES_FULL } from '../support/postgres-process.ts';
import { startPostgres } from '../support/postgres-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeForTest } from '../support/stores.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

async function withStore() {
  const server = await startPostgres({ fsync: 'off' }, SHORT_LOG_FILES);
  const store = await storeForTest({ kind: 'postgres', url: server.url, schema: 'oncegate' });
  return { server, store };
}

/** Repeats a write until it is answered, as the engine does. */
const untilAnswered = <T>(write: () => Promise<T>) => until(() => write().catch(() => undefined));

const AT_ONCE = 200;

/** Starts keys until some are refused. Returns what each start answered. */
async function startUntilRefused(store: Store): Promise<Map<Execution, unknown>> {
  const answers = new Map<Execution, unknown>();
  const start = async (owner: Execution) => {
    answers.set(owner, await store.start(owner).catch((error: unknown) => error));
  };
  while (!refusalsIn(answers).length)
    await Promise.all(Array.from({ length: AT_ONCE }, newRequest).map(start));
  return answers;
}

const refusalsIn = (answers: Map<Execution, unknown>) =>
  [...answers.values()].filter((answer) => answer instanceof StoreUnavailable);

/** A start that was answered is there. One that was refused is perhaps there; it is taken back, and its key can be used. */
async function expectTrue(store: Store, answers: Map<Execution, unknown>): Promise<void> {
  for (const [owner, answer] of answers) {
    const isThere = (await store.get(owner.recordId)) !== undefined;
    if (!(answer instanceof StoreUnavailable)) {
      expect([answer, isThere]).toEqual([{ kind: 'started' }, true]);
      continue;
    }
    if (!answer.maybeWritten) expect(isThere).toBe(false);
    expect(await store.takeBack(owner)).toBe(isThere ? 'ok' : 'stale');
    expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'started' });
  }
}

/** Longer than any file may be. */
function longResponse(): Completion & { kind: 'response' } {
  const { kind, response } = paid();
  return { kind, response: { ...response, body: Buffer.alloc(2 * TABLES_FULL, 'x') } };
}

it('while tables cannot grow, starts are refused and replays are served; with space each response is stored', async () => {
  const { server, store } = await withStore();
  const [sent, completed] = [await bring(store, 'executing'), await bring(store, 'completed')];
  server.limitFiles(TABLES_FULL);
  const answers = await startUntilRefused(store);
  const message = expect.stringContaining('could not extend file');
  for (const refusal of refusalsIn(answers)) expect(refusal).toMatchObject({ message, maybeWritten: true });
  expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
  expect(await store.start(duplicateOf(sent))).toEqual({ kind: 'in_flight' });
  // A check may find room that its connection knows of, as long as starts there do not use it up.
  await until(async () => {
    await startUntilRefused(store);
    return !(await store.health()).ok;
  });
  expect(await store.health()).toMatchObject({ ok: false, detail: message });
  await expect(store.complete(sent, longResponse())).rejects.toMatchObject({ message, maybeWritten: true });

  server.limitFiles('unlimited');
  expect(await store.health()).toMatchObject({ ok: true });
  expect(await store.complete(sent, longResponse())).toBe('ok');
  expect(await store.start(duplicateOf(sent))).toEqual(replayOf(longResponse(), sent));
  await expectTrue(store, answers);
});

it('a server that ends because its log cannot be written has what was answered when it is back', async () => {
  const { server, store } = await withStore();
  const sent = await bring(store, 'executing');
  const filling = startUntilRefused(store);
  await until(() => hasRecords(server, AT_ONCE));
  server.limitFiles(1);
  const answers = await filling;
  await expect(store.complete(sent, paid())).rejects.toBeInstanceOf(StoreUnavailable);

  await server.restart();
  expect(await untilAnswered(() => store.complete(sent, paid()))).toBe('ok');
  await expectTrue(store, answers);
  expect(await store.start(duplicateOf(sent))).toEqual(replayOf(paid(), sent));
});

const hasRecords = async ({ admin }: PostgresServer, number: number) =>
  (await admin.query('SELECT count(*)::int FROM oncegate.records')).rows[0].count >= number;
