import type { DatabaseSync, SQLInputValue } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope, Token } from '../../lib/brands.ts';
import type { Clock } from '../../lib/clock.ts';
import { type AuditRecord, StoreUnavailable, UnreadableRecord } from '../contract.ts';
import { beginsLog, decodeMark, encodeMark, type Mark } from '../copy-mark.ts';
import {
  type CopiedRecord,
  type CopySide,
  type Expected,
  type LogEntry,
  type Replacement,
  type Snapshot,
  Superseded,
  type UnreadableSnapshot,
} from '../copy-side.ts';
import { makeCopyTables, readMarkText, setMark } from './old/copy-table.ts';
import {
  inTransaction,
  messageOf,
  openForWriting,
  prepareFiles,
  resultCodeOf,
  SQLITE_BUSY,
} from './old/database.ts';
import { packCompletion, unpackBytes } from './old/messages.ts';
import { insertAudit, readAudit } from './old/operators.ts';
import {
  isExpired,
  ownerIsAlive,
  ROW_COLUMNS,
  type Row,
  readSelected,
  scopeBytes,
} from './old/records-table.ts';
import { bootId, enterBoot, type Now, RunningTime } from './old/running-time.ts';

export interface SqliteCopySideOptions {
  /** The folder of the database. It is made if it is missing. */
  path: string;
  clock: Clock;
}

/** Records are read up to this size at once, and at least one. */
const PAGE_BYTES = 8 * 1024 * 1024;
/** Few, so that the payouts of gateways get the write lock and the processor in between. */
const SCOPES_PER_PAGE = 250;
/** Another process may be moving a large WAL into the database file. */
const BUSY_FOR_MS = 10_000;

/**
 * A SQLite database as the source or the destination of a copy. It has one connection in this process. Its reads and its
 * transactions are short, because gateways use the file meanwhile.
 */
export class SqliteCopySide implements CopySide {
  readonly name: string;
  readonly warnings: readonly string[] = [];
  readonly #database: DatabaseSync;
  readonly #time: RunningTime;

  /** @throws {StoreUnavailable} */
  static async open({ path, clock }: SqliteCopySideOptions): Promise<SqliteCopySide> {
    let database: DatabaseSync | undefined;
    try {
      const file = prepareFiles(path);
      const opened = await whileBusy(() => openForWriting(file));
      database = opened;
      const state = await whileBusy(() =>
        inTransaction(opened, () => {
          makeCopyTables(opened);
          return enterBoot(opened, bootId(), clock.monotonicMs());
        }),
      );
      return new SqliteCopySide(path, opened, new RunningTime(state, clock));
    } catch (error) {
      database?.close();
      throw new StoreUnavailable(`the store in ${path} cannot be used: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  private constructor(path: string, database: DatabaseSync, time: RunningTime) {
    this.name = `sqlite ${path}`;
    this.#database = database;
    this.#time = time;
  }

  async readMark(): Promise<Mark | undefined> {
    const text = await this.#reading(() => readMarkText(this.#database));
    return text === undefined ? undefined : decodeMark(text);
  }

  async changeMark(from: Mark | undefined, to: Mark | undefined): Promise<boolean> {
    return await this.#writing(() => {
      if (readMarkText(this.#database) !== (from && encodeMark(from))) return false;
      if (beginsLog(from, to)) this.#database.exec('DELETE FROM copy_log');
      setMark(this.#database, to ? encodeMark(to) : null, to?.state);
      return true;
    });
  }

  async readBeat(): Promise<string> {
    const { beat } = await this.#reading(
      () => this.#database.prepare('SELECT beat FROM copy').get() as { beat: string },
    );
    return beat;
  }

  async writeBeat(beat: string): Promise<void> {
    await this.#writing(() => this.#database.prepare('UPDATE copy SET beat = ?').run(beat));
  }

  async isEmpty(): Promise<boolean> {
    const sql = 'SELECT EXISTS (SELECT 1 FROM records) + EXISTS (SELECT 1 FROM audit) AS found';
    const { found } = await this.#reading(() => this.#database.prepare(sql).get() as { found: number });
    return found === 0;
  }

  async *scopes(): AsyncIterable<Scope[]> {
    for (const table of ['records', 'audit']) {
      const page = this.#database.prepare(
        `SELECT id, lower(hex(scope)) AS scope FROM ${table} WHERE id > ? ORDER BY id LIMIT ${SCOPES_PER_PAGE}`,
      );
      for (let after = 0; ; ) {
        const from = after;
        const rows = await this.#reading(() => page.all(from) as unknown as { id: number; scope: Scope }[]);
        const last = rows.at(-1);
        if (!last) break;
        yield [...new Set(rows.map(({ scope }) => scope))];
        after = last.id;
      }
    }
  }

  async appendToLog(entries: readonly LogEntry[]): Promise<void> {
    if (entries.length === 0) return;
    await this.#writing(() => {
      const insert = this.#database.prepare('INSERT INTO copy_log (scope, token) VALUES (?, ?)');
      for (const { scope, token } of entries) insert.run(scopeBytes(scope), token);
    });
  }

  async readLog(after: number): Promise<LogEntry[]> {
    const rows = await this.#reading(
      () =>
        this.#database
          .prepare('SELECT lower(hex(scope)) AS scope, token FROM copy_log ORDER BY id LIMIT -1 OFFSET ?')
          .all(after) as unknown as { scope: Scope; token: Uint8Array }[],
    );
    return rows.map(({ scope, token }) => ({ scope, token: Buffer.from(token) as Token }));
  }

  async read(scopes: readonly Scope[]): Promise<(Snapshot | UnreadableSnapshot)[]> {
    return await this.#reading(() => {
      const select = this.#database.prepare(`SELECT ${ROW_COLUMNS} FROM records WHERE scope = ?`);
      select.setReturnArrays(true);
      const now = this.#now();
      const found: (Snapshot | UnreadableSnapshot)[] = [];
      let bytes = 0;
      for (const scope of scopes) {
        if (bytes > PAGE_BYTES) break;
        try {
          const row = readSelected(() => select.get(scopeBytes(scope)));
          const record = row && !isExpired(row, now) ? recordIn(row, now) : undefined;
          bytes += record ? bodyBytesOf(record) : 0;
          found.push({ scope, record, ...this.#auditOf(scope, now) });
        } catch (error) {
          if (!(error instanceof UnreadableRecord)) throw error;
          found.push({ scope, unreadable: error.message });
        }
      }
      return found;
    });
  }

  async write(mark: Mark, replacements: readonly Replacement[]): Promise<boolean[]> {
    return await this.#writing(() => {
      if (readMarkText(this.#database) !== encodeMark(mark)) throw new Superseded();
      this.#database.exec('UPDATE copy SET writing = 1');
      const now = this.#now();
      const written = replacements.map((replacement) => this.#replace(replacement, now));
      this.#database.exec('UPDATE copy SET writing = 0');
      return written;
    });
  }

  /** Every commit is durable. */
  async flush(): Promise<void> {}

  async close(): Promise<void> {
    this.#database.close();
  }

  #replace(
    { snapshot: { scope, record, audit, auditExpiresInMs }, expected, withAudit }: Replacement,
    now: Now,
  ) {
    if (expected !== 'anything' && !this.#isAs(scope, expected, now)) return false;
    const { runningMs } = now;
    this.#database.prepare('DELETE FROM records WHERE scope = ?').run(scopeBytes(scope));
    if (record) {
      const columns = columnsOf(scope, record, runningMs);
      const names = Object.keys(columns);
      this.#database
        .prepare(`INSERT INTO records (${names.join()}) VALUES (${names.map(() => '?').join()})`)
        .run(...Object.values(columns));
    }
    if (!withAudit) return true;
    this.#database.prepare('DELETE FROM audit WHERE scope = ?').run(scopeBytes(scope));
    for (const line of audit)
      insertAudit(this.#database, scopeBytes(scope), line, Math.ceil(runningMs + auditExpiresInMs));
    return true;
  }

  #isAs(scope: Scope, expected: Exclude<Expected, 'anything'>, now: Now): boolean {
    const select = this.#database.prepare(`SELECT ${ROW_COLUMNS} FROM records WHERE scope = ?`);
    select.setReturnArrays(true);
    const row = readSelected(() => select.get(scopeBytes(scope)));
    const found = row && !isExpired(row, now) ? row : undefined;
    if (expected === 'absent' || !found) return expected === 'absent' && !found;
    const { state, token, wasInDoubt } = found.record;
    return (
      state === expected.state &&
      token.equals(expected.token) &&
      wasInDoubt === expected.wasInDoubt &&
      found.ownerGaveUp === expected.ownerGaveUp
    );
  }

  #auditOf(scope: Scope, now: Now): { audit: AuditRecord[]; auditExpiresInMs: number } {
    const audit = readAudit(this.#database, scope, now);
    if (audit.length === 0) return { audit, auditExpiresInMs: 0 };
    const { last } = this.#database
      .prepare('SELECT max(expires_at) AS last FROM audit WHERE scope = ?')
      .get(scopeBytes(scope)) as { last: number };
    return { audit, auditExpiresInMs: last - now.runningMs };
  }

  /** Without a boot id, processes do not know that they share a clock, so this one follows what the gateways have stored. */
  #now(): Now {
    const { observed } = this.#database.prepare('SELECT max(observed_at) AS observed FROM clock').get() as {
      observed: number;
    };
    this.#time.catchUpWith(observed);
    return this.#time.now();
  }

  async #reading<T>(read: () => T): Promise<T> {
    return await asStoreUnavailable(() => whileBusy(read));
  }

  /** Runs in one transaction, which is undone if `work` throws. */
  async #writing<T>(work: () => T): Promise<T> {
    return await asStoreUnavailable(() => whileBusy(() => inTransaction(this.#database, work)));
  }
}

function bodyBytesOf({ completion }: CopiedRecord): number {
  if (completion?.kind === 'response') return completion.response.body.length;
  return completion?.kind === 'sealed' ? completion.bytes.length : 0;
}

function recordIn(row: Row, now: Now): CopiedRecord {
  const { record, ownerGaveUp, expiresAt, aliveAt } = row;
  const isAlive = record.state === 'executing' && ownerIsAlive(row, now);
  return {
    ...record,
    ownerGaveUp,
    expiresInMs: expiresAt - now.runningMs,
    aliveForMs: isAlive ? aliveAt + record.lifetimes.leaseMs - now.runningMs : 0,
  };
}

function columnsOf(scope: Scope, record: CopiedRecord, runningMs: number): Record<string, SQLInputValue> {
  const { lifetimes, completion } = record;
  const { status, headers, body, encryptionKeyId } = completion
    ? packCompletion(completion)
    : { status: null, headers: null, body: null, encryptionKeyId: null };
  return {
    scope: scopeBytes(scope),
    state: record.state,
    token: record.token,
    fingerprint: record.fingerprint,
    merchant: record.merchant,
    operation: record.operation,
    idempotency_key: record.key,
    request_id: record.requestId,
    gateway_id: record.gatewayId,
    created_at_ms: Math.trunc(record.createdAtMs),
    changed_at_ms: Math.trunc(record.changedAtMs),
    lease_ms: lifetimes.leaseMs,
    retention_ms: lifetimes.retentionMs,
    in_doubt_retention_ms: lifetimes.inDoubtRetentionMs,
    was_in_doubt: Number(record.wasInDoubt),
    owner_gave_up: Number(record.ownerGaveUp),
    // Rounded down for a dead owner, so that it does not come to life.
    alive_at:
      record.aliveForMs > 0
        ? Math.ceil(runningMs - lifetimes.leaseMs + record.aliveForMs)
        : Math.floor(runningMs - lifetimes.leaseMs),
    expires_at: Math.ceil(runningMs + record.expiresInMs),
    status,
    headers,
    body: body === null ? null : unpackBytes(body),
    encryption_key_id: encryptionKeyId,
  };
}

/** Tries again while another process holds the lock. */
async function whileBusy<T>(attempt: () => T): Promise<T> {
  const startedMs = performance.now();
  for (;;) {
    try {
      return attempt();
    } catch (error) {
      if (resultCodeOf(error) !== SQLITE_BUSY || performance.now() - startedMs >= BUSY_FOR_MS) throw error;
    }
    await sleep(1);
  }
}

async function asStoreUnavailable<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Superseded || error instanceof StoreUnavailable) throw error;
    throw new StoreUnavailable(`sqlite: ${messageOf(error)}`, { cause: error });
  }
}
