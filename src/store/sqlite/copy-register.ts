import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type { RecordId } from '../../lib/brands.ts';
import { messageOf } from '../../lib/files.ts';
import { AUDIT_RETENTION_MS, type AuditRecord } from '../doubts.ts';
import type { CopyProgress, CopyRegister, FoundProgress } from '../register.ts';
import { decodeCopyProgress, encodeCopyProgress } from '../register.ts';
import { ApplicationRegister } from './application-register.ts';
import { tablesIn } from './application-writer.ts';
import { checkInodes, inodesOf, type Tables, unavailable } from './database.ts';
import { SqliteRegister } from './sqlite-register.ts';
import type { SqliteRegisterOptions } from './writer.ts';

const ROWS_PER_PAGE = 1000;

/** A SQLite database as the source or the destination of a copy. It has one more connection in this process. */
export class SqliteCopyRegister implements CopyRegister {
  readonly register: SqliteRegister;
  readonly #file: string;
  readonly #database: Tables;
  readonly #inodes: readonly string[];

  /** @throws {StoreUnavailable} */
  static async open(options: SqliteRegisterOptions): Promise<SqliteCopyRegister> {
    const file = join(options.path, 'records.db');
    const register = await SqliteRegister.open(options);
    return new SqliteCopyRegister(register, file, connect(file, options));
  }

  /** As {@link ApplicationRegister.openFile}. */
  static async openFile(options: SqliteRegisterOptions): Promise<SqliteCopyRegister> {
    const file = options.path;
    const register = await ApplicationRegister.openFile(options);
    return new SqliteCopyRegister(register, file, tablesIn(connect(file, options), true));
  }

  private constructor(register: SqliteRegister, file: string, database: Tables) {
    this.register = register;
    this.#file = file;
    this.#database = database;
    this.#inodes = inodesOf(file);
  }

  async readCopyProgress(): Promise<FoundProgress | undefined> {
    const text = this.#progressText();
    return text === null ? undefined : { ...decodeCopyProgress(text), isWhole: true };
  }

  async changeCopyProgress(to: CopyProgress): Promise<boolean> {
    const [now, next] = [this.#progressText(), encodeCopyProgress(to)];
    if (now === next) return true;
    if (to.epoch !== (now === null ? 0 : decodeCopyProgress(now).epoch) + 1) return false;
    // Another process may have changed it since it was read.
    return this.#run('UPDATE store SET copy_mark = ? WHERE copy_mark IS ? RETURNING 1', next, now).length > 0;
  }

  async servers(): Promise<string> {
    return inodesOf(this.#file).join(' ');
  }

  async *scan() {
    for (const kind of ['record', 'audit'] as const) {
      const table = kind === 'record' ? 'records' : 'audit';
      const select = `SELECT DISTINCT record_id FROM ${table} WHERE record_id > ? ORDER BY record_id LIMIT ?`;
      let page: { record_id: Uint8Array }[];
      let after: Uint8Array = Buffer.of();
      do {
        page = this.#run(select, after, ROWS_PER_PAGE) as typeof page;
        yield page.map(({ record_id }) => ({ id: Buffer.from(record_id).toString('hex') as RecordId, kind }));
        after = page.at(-1)?.record_id ?? after;
      } while (page.length === ROWS_PER_PAGE);
    }
  }

  async putAudit(id: RecordId, audit: readonly AuditRecord[]): Promise<void> {
    const insert = `INSERT INTO audit (record_id, entry, expires_at) SELECT ?1, value, ?3 FROM json_each(?2)
      WHERE NOT EXISTS (SELECT 1 FROM audit WHERE record_id = ?1)`;
    const entries = JSON.stringify(audit.map((entry) => JSON.stringify(entry)));
    const expiresAt = Math.ceil(this.register.runningMs + AUDIT_RETENTION_MS);
    this.#run(insert, Buffer.from(id, 'hex'), entries, expiresAt);
  }

  /** The writer thread of the register closes the database last. */
  async close(): Promise<void> {
    this.#database.close();
    await this.register.close();
  }

  #progressText(): string | null {
    const [row] = this.#run('SELECT copy_mark FROM store') as { copy_mark: string | null }[];
    return row?.copy_mark ?? null;
  }

  /** Runs one statement, which is a durable transaction. @throws {StoreUnavailable} */
  #run(sql: string, ...values: (string | number | Uint8Array | null)[]): unknown[] {
    try {
      // Gateways obey the progress in the file that has the name.
      checkInodes(this.#file, this.#inodes);
      return this.#database.prepare(sql).all(...values);
    } catch (error) {
      throw unavailable(messageOf(error), true, error);
    }
  }
}

/** Opens the connection of a copy. It blocks this thread, which has nothing else to do. */
function connect(file: string, { timeoutMs }: SqliteRegisterOptions): DatabaseSync {
  const database = new DatabaseSync(file, { timeout: timeoutMs });
  // A rollback journal, which an application may have chosen, needs it: see application-writer.ts.
  database.exec('PRAGMA synchronous = EXTRA');
  return database;
}
