import type { RecordId } from '../../lib/brands.ts';
import { pause } from '../../lib/clock.ts';
import { AUDIT_RETENTION_MS, type AuditRecord } from '../doubts.ts';
import {
  type CopyProgress,
  type CopyRegister,
  decodeCopyProgress,
  encodeCopyProgress,
  type FoundProgress,
} from '../register.ts';
import { StoreUnavailable } from '../types.ts';
import { type Connection, LOCK_NOT_AVAILABLE, NOT_WRITTEN } from './connection.ts';
import type { PostgresOptions } from './health.ts';
import { PostgresRegister } from './register.ts';
import { CLOCK } from './tables.ts';

const ROWS_PER_PAGE = 1000;
/** How long one try to change the progress waits for short transactions. Each write waits behind it, and fails after 50 ms. */
const SHORT_WAIT_MS = 20;
/** The same at last: each commit may take longer than a short wait, as with a standby that is far away. No try waits for an older transaction. */
const LONG_WAIT_MS = 500;
const PAUSE_MS = 200;
const MOST_NAMED = 5;

/** A transaction that has begun to write records. */
type Holder = [pid: number | null, application: string | null, since: string | null, ageMs: number | null];

/** A schema of PostgreSQL as the source or the destination of a copy. */
export class PostgresCopyRegister implements CopyRegister {
  readonly register: PostgresRegister;
  readonly #options: PostgresOptions;

  /** @throws {StoreUnavailable} */
  static async open(options: PostgresOptions): Promise<PostgresCopyRegister> {
    return new PostgresCopyRegister(await PostgresRegister.open(options), options);
  }

  private constructor(register: PostgresRegister, options: PostgresOptions) {
    this.register = register;
    this.#options = options;
  }

  async readCopyProgress(): Promise<FoundProgress | undefined> {
    const text = await this.#progressText();
    return text === null ? undefined : { ...decodeCopyProgress(text), isWhole: true };
  }

  async changeCopyProgress(to: CopyProgress): Promise<boolean> {
    const { schema, lanes } = this.register;
    const [now, next] = [await this.#progressText(), encodeCopyProgress(to)];
    if (now !== next && to.epoch !== (now === null ? 0 : decodeCopyProgress(now).epoch) + 1) return false;
    // The lock waits for every write that may not have seen it. Another process may have changed it since it was read. It is written
    // again if it is there, because standbys may not have it.
    const change = `LOCK TABLE ${schema}.copy IN EXCLUSIVE MODE;
      UPDATE ${schema}.copy SET progress = ${literal(next)} WHERE progress IS NOT DISTINCT FROM ${now === null ? 'NULL' : literal(now)};
      COMMIT`;
    await lanes.apart((connection) => this.#whenFree(connection, change));
    return (await this.#progressText()) === next;
  }

  async servers(): Promise<string> {
    return String(this.register.connectionOf());
  }

  async *scan() {
    const { schema, lanes } = this.register;
    for (const kind of ['record', 'audit'] as const) {
      const from =
        kind === 'record' ? `${schema}.records WHERE state <> 'absent' AND` : `${schema}.audit WHERE`;
      const select = `SELECT DISTINCT id FROM ${from} id > $1 ORDER BY id LIMIT ${ROWS_PER_PAGE}`;
      let page: [Buffer][];
      let after: Buffer = Buffer.of();
      do {
        page = await lanes.ask<[Buffer]>(select, [after]);
        yield page.map(([id]) => ({ id: id.toString('hex') as RecordId, kind }));
        [after] = page.at(-1) ?? [after];
      } while (page.length === ROWS_PER_PAGE);
    }
  }

  async putAudit(id: RecordId, audit: readonly AuditRecord[]): Promise<void> {
    const { schema, lanes } = this.register;
    const insert = `INSERT INTO ${schema}.audit (id, entry, expires_at)
      SELECT $1, entry, ${CLOCK} + interval '${AUDIT_RETENTION_MS} ms' FROM unnest($2::text[]) entry
      WHERE NOT EXISTS (SELECT 1 FROM ${schema}.audit WHERE id = $1)`;
    await lanes.change(insert, [Buffer.from(id, 'hex'), audit.map((entry) => JSON.stringify(entry))]);
  }

  close(): Promise<void> {
    return this.register.close();
  }

  /**
   * Waits for transactions that are open for long without asking for the lock, because every write queues behind who waits for it.
   *
   * @throws {StoreUnavailable} names the transactions that have not ended within the time limit
   */
  async #whenFree(connection: Connection, change: string): Promise<void> {
    const { clock, timeoutMs } = this.#options;
    const startedMs = clock.monotonicMs();
    for (;;) {
      const holders = await this.#holders(connection);
      const triedMs = clock.monotonicMs() - startedMs;
      const waitMs = triedMs < timeoutMs / 2 ? SHORT_WAIT_MS : LONG_WAIT_MS;
      const isLong = holders.some(([, , , ageMs]) => ageMs !== null && ageMs > LONG_WAIT_MS);
      if (!isLong && (await isDoneWithin(waitMs, connection, change))) return;
      if (triedMs >= timeoutMs) throw new StoreUnavailable(notEnded(timeoutMs, holders), NOT_WRITTEN);
      await pause(clock, PAUSE_MS);
    }
  }

  /** Who holds the lock. The role may not see since when another role does. A prepared transaction has no process. */
  #holders(connection: Connection): Promise<Holder[]> {
    const text = `SELECT DISTINCT pid, application_name, date_trunc('second', xact_start)::text,
        (extract(epoch FROM now() - xact_start) * 1000)::float8 AS age
      FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
      WHERE relation = '${this.register.schema}.copy'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND granted AND mode <> 'AccessShareLock'
      ORDER BY age DESC LIMIT ${MOST_NAMED}`;
    return connection.run<Holder>({ name: '', text }, []);
  }

  async #progressText(): Promise<string | null> {
    const { schema, lanes } = this.register;
    const [[text] = [null]] = await lanes.ask<[string | null]>(`SELECT progress FROM ${schema}.copy`);
    return text;
  }
}

const literal = (text: string): string => `'${text.replaceAll("'", "''")}'`;

/** Runs statements in a transaction, unless their lock is not free in time. */
async function isDoneWithin(waitMs: number, connection: Connection, change: string): Promise<boolean> {
  try {
    await connection.script(
      `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = ${waitMs}; ${change}`,
    );
    return true;
  } catch (error) {
    if ((error as { code?: unknown }).code !== LOCK_NOT_AVAILABLE) throw error;
    await connection.script('ROLLBACK');
    return false;
  }
}

function notEnded(timeoutMs: number, holders: Holder[]): string {
  const named = holders.map(([pid, application, since]) =>
    pid === null
      ? 'a prepared transaction (pg_prepared_xacts)'
      : `pid ${pid} (${application || 'without an application_name'}, since ${since ?? 'a time that the role may not see'})`,
  );
  const who = named.join(', ') || 'others, one after the other';
  return `postgres: the store waits for transactions that write records, and they have not ended within ${timeoutMs} ms: ${who}`;
}
