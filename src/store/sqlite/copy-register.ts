import { join } from 'node:path';
import type { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope } from '../../lib/brands.ts';
import { AUDIT_RETENTION_MS, type AuditRecord, StoreUnavailable } from '../contract.ts';
import {
  type CopyMark,
  type CopyRegister,
  decodeCopyMark,
  encodeCopyMark,
  type Scanned,
} from '../register.ts';
import { identityOf, isBusy, messageOf, openForWriting } from './database.ts';
import { SqliteRegister, type SqliteRegisterOptions } from './sqlite-register.ts';

const ROWS_PER_PAGE = 1000;
/** Another process may be moving a large WAL into the database file. */
const BUSY_FOR_MS = 10_000;

/** A SQLite database as the source or the destination of a copy. It has one more connection in this process. */
export class SqliteCopyRegister implements CopyRegister {
  readonly register: SqliteRegister;
  readonly #file: string;
  readonly #database: DatabaseSync;

  /** @throws {StoreUnavailable} */
  static async open(options: SqliteRegisterOptions): Promise<SqliteCopyRegister> {
    const register = await SqliteRegister.open({ ...options, timeoutMs: BUSY_FOR_MS });
    const file = join(options.path, 'records.db');
    return new SqliteCopyRegister(register, file, await whileBusy(() => openForWriting(file)));
  }

  private constructor(register: SqliteRegister, file: string, database: DatabaseSync) {
    this.register = register;
    this.#file = file;
    this.#database = database;
  }

  async readCopyMark(): Promise<(CopyMark & { isWhole: boolean }) | undefined> {
    const mark = await whileBusy(() => this.#copyMark());
    return mark && { ...mark, isWhole: true };
  }

  changeCopyMark(to: CopyMark): Promise<boolean> {
    return this.#writing(() => {
      const { epoch = 0, runId } = this.#copyMark() ?? {};
      if (to.epoch === epoch && to.runId === runId) return true;
      if (to.epoch !== epoch + 1) return false;
      this.#database.prepare('UPDATE store SET copy_mark = ?').run(encodeCopyMark(to));
      return true;
    });
  }

  async servers(): Promise<string> {
    return identityOf(this.#file).join(' ');
  }

  async *scan(): AsyncIterable<Scanned[]> {
    for (const [kind, table] of [
      ['record', 'records'],
      ['audit', 'audit'],
    ] as const) {
      const select = this.#database.prepare(
        `SELECT DISTINCT lower(hex(record_id)) AS id FROM ${table} WHERE record_id > ? ORDER BY record_id LIMIT ?`,
      );
      let page: { id: Scope }[];
      let after = '';
      do {
        page = await whileBusy(() => select.all(Buffer.from(after, 'hex'), ROWS_PER_PAGE) as { id: Scope }[]);
        yield page.map(({ id }) => ({ id, kind }));
        after = page.at(-1)?.id ?? '';
      } while (page.length === ROWS_PER_PAGE);
    }
  }

  putAudit(id: Scope, audit: readonly AuditRecord[]): Promise<void> {
    return this.#writing(() => {
      const record = Buffer.from(id, 'hex');
      if (this.#database.prepare('SELECT 1 FROM audit WHERE record_id = ?').get(record)) return;
      const expiresAt = Math.ceil(this.register.runningMs + AUDIT_RETENTION_MS);
      const insert = this.#database.prepare(
        'INSERT INTO audit (record_id, entry, expires_at) VALUES (?, ?, ?)',
      );
      for (const entry of audit) insert.run(record, JSON.stringify(entry), expiresAt);
    });
  }

  /** The writer thread of the register closes the database last. */
  async close(): Promise<void> {
    this.#database.close();
    await this.register.close();
  }

  #copyMark(): CopyMark | undefined {
    const row = this.#database.prepare('SELECT copy_mark AS text FROM store').get();
    const { text } = row as { text: string | null };
    return text === null ? undefined : decodeCopyMark(text);
  }

  /** One durable transaction. It is undone if `work` throws. */
  #writing<T>(work: () => T): Promise<T> {
    return whileBusy(() => {
      this.#database.exec('BEGIN IMMEDIATE');
      try {
        const result = work();
        this.#database.exec('COMMIT');
        return result;
      } catch (error) {
        if (this.#database.isTransaction) this.#database.exec('ROLLBACK');
        throw error;
      }
    });
  }
}

/** Tries again while another process holds the lock. */
async function whileBusy<T>(attempt: () => T): Promise<T> {
  const startedMs = performance.now();
  for (;;) {
    try {
      return attempt();
    } catch (error) {
      if (!isBusy(error) || performance.now() - startedMs >= BUSY_FOR_MS)
        throw new StoreUnavailable(`sqlite: ${messageOf(error)}`, { cause: error });
    }
    await sleep(1);
  }
}
