import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { onTestFinished } from 'vitest';
import { send, type TestAnswer } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { startPostgres } from '../../support/postgres-server.ts';
import { begin } from '../../support/tour.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const MERCHANTS = 6;
const PROCESSES = 3;
const LONGEST_LIFE_MS = 150;

/** What became of payouts while processes of their application were killed. */
export interface Verdict {
  kills: number;
  /** Requests whose connection a kill has broken. */
  broken: number;
  /** Payouts that a merchant was told, with their numbers. */
  told: number;
  /** Keys whose merchant was told another payout than the one that is there, or none is there. */
  lost: string[];
  twice: string[];
  /** Keys that some answer called in doubt, and records that are not completed. */
  inDoubt: string[];
}

/** An application, and what is in its database: the numbers of the payouts of each key, and the keys that are not completed. */
interface Application {
  /** A file beside this one, and its argument. */
  program: [file: string, argument: string];
  payouts(): Promise<[key: string, numbers: string[]][]>;
  open(): Promise<string[]>;
}

export async function onPostgres(): Promise<Application> {
  const { url, admin } = await startPostgres();
  await admin.query('CREATE TABLE payouts (number bigserial PRIMARY KEY, key text NOT NULL)');
  const select = async (text: string) => (await admin.query({ text, rowMode: 'array' })).rows;
  return {
    program: ['transaction-program.ts', url],
    payouts: async () =>
      (await select('SELECT key, array_agg(number::text) FROM payouts GROUP BY key')) as [string, string[]][],
    open: async () =>
      (
        await select("SELECT idempotency_key FROM oncegate.records WHERE state IN ('executing', 'in_doubt')")
      ).flat(),
  };
}

export async function onSqlite(): Promise<Application> {
  const file = join(temporaryFolder(), 'payouts.sqlite');
  const database = new DatabaseSync(file, { returnArrays: true, timeout: 5000 });
  onTestFinished(() => database.close());
  database.exec('PRAGMA journal_mode = WAL');
  database.exec('CREATE TABLE payouts (number INTEGER PRIMARY KEY, key TEXT NOT NULL)');
  const select = (sql: string) => database.prepare(sql).all() as unknown as string[][];
  return {
    program: ['sqlite-transaction-program.ts', file],
    payouts: async () => {
      const rows = select('SELECT key, group_concat(number) FROM payouts GROUP BY key');
      return rows.map(([key = '', numbers = '']) => [key, numbers.split(',')]);
    },
    open: async () =>
      select("SELECT idempotency_key FROM oncegate_records WHERE state <> 'completed'").flat(),
  };
}

/** Some processes of an application pay for merchants who retry until they know. Each is killed at a random moment, and started again. */
export async function payUnderKills(
  kills: number,
  { program, payouts, open }: Application,
): Promise<Verdict> {
  const [name, argument] = program;
  const file = fileURLToPath(new URL(name, import.meta.url));
  const addresses: (string | undefined)[] = [];
  /** Has answered since it was started. */
  const hasPaid: boolean[] = [];
  const start = async (_: unknown, which: number) => {
    const running = begin([], { program: [process.execPath, file, argument] });
    const [port = ''] = await running.printed(/^\d+$/);
    hasPaid[which] = false;
    addresses[which] = `http://127.0.0.1:${port}`;
    return running;
  };
  const processes = Array.from({ length: PROCESSES }, start);
  const told = new Map<string, string>();
  const verdict: Verdict = { kills, broken: 0, told: 0, lost: [], twice: [], inDoubt: [] };
  let isOver = false;

  async function payOnce(key: string): Promise<TestAnswer | undefined> {
    const which = Math.floor(Math.random() * PROCESSES);
    const address = addresses[which];
    if (!address) return undefined;
    const path = key.endsWith('0') ? '/own' : '/transaction';
    try {
      const answer = await send(address, { method: 'POST', path, headers: { 'idempotency-key': key } });
      hasPaid[which] ||= answer.status === 201;
      return answer;
    } catch {
      verdict.broken++;
      return undefined;
    }
  }
  async function merchant(name: number): Promise<void> {
    for (let n = 0; !isOver; n++) {
      const key = `${name}-${n}-${n % 2}`;
      for (;;) {
        const answer = await payOnce(key);
        if (answer?.status === 201) {
          told.set(key, answer.json<{ number: string }>().number);
          break;
        }
        if (answer && codeOf(answer) === 'outcome_unknown') {
          verdict.inDoubt.push(key);
          break;
        }
        await sleep(5);
      }
    }
  }

  const merchants = Array.from({ length: MERCHANTS }, (_, name) => merchant(name));
  for (let kill = 0; kill <= kills; kill++) {
    const which = kill % PROCESSES;
    const running = await (processes[which] as ReturnType<typeof start>);
    await until(() => hasPaid[which]);
    if (kill === kills) break;
    await sleep(Math.random() * LONGEST_LIFE_MS);
    addresses[which] = undefined;
    await running.end('SIGKILL');
    processes[which] = start(undefined, which);
  }
  isOver = true;
  await Promise.all(merchants);
  for (const running of await Promise.all(processes)) await running.end('SIGKILL');

  const numbers = new Map(await payouts());
  for (const [key, number] of told) if (!numbers.get(key)?.includes(number)) verdict.lost.push(key);
  for (const [key, all] of numbers) if (all.length > 1) verdict.twice.push(key);
  verdict.inDoubt.push(...(await open()));
  verdict.told = told.size;
  return verdict;
}
