import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import type { RecordId, Token } from '../../lib/brands.ts';
import { messageOf } from '../../lib/files.ts';
import { systemRandom } from '../../lib/random.ts';
import type { AuditRecord } from '../doubts.ts';
import type { Create, Held, OpenCount, Page, Register, Replace, Reply, Seen } from '../register.ts';
import {
  type IdentityInUse,
  type Mode,
  OtherFormat,
  StoreClosed,
  type StoreHealth,
  StoreUnavailable,
  type StoreUsage,
  UnknownCursor,
} from '../types.ts';
import { ANSWERS, COMMANDS } from './batch.ts';
import { valuesOfWrite } from './changes.ts';
import {
  isBusy,
  openForReading,
  prepareFiles,
  refuseOtherFormat,
  SELECT_VERSION,
  type Tables,
  unavailable,
} from './database.ts';
import { Maintenance } from './maintenance.ts';
import { type CountOptions, countOpen, idsOf, type ListQuery, pageOf, type Rows } from './operators.ts';
import { idBytes, readSelected, SELECT_IDENTITY, SELECT_RECORD, storedIdentity } from './records.ts';
import { bootId, lockClock } from './running-time.ts';
import { type CommandWriter, closed, type SqliteRegisterOptions, Writer } from './writer.ts';

/** A megabyte of memory, for a quarter of a million of keys. */
const BUCKET_DIGITS = 5;

/**
 * The embedded store: one SQLite database, which all processes of a machine may share.
 *
 * Reads run here on the main thread and never wait for a lock. Every write goes to the writer thread, which compares the revision
 * within its transaction (changes.ts).
 */
export class SqliteRegister implements Register {
  readonly replicates = false;
  readonly #file: string;
  readonly #timeoutMs: number;
  readonly #database: Tables;
  readonly #writer: CommandWriter;
  readonly #maintenance: Maintenance;
  readonly #select: StatementSync;
  readonly #rows: Rows = { prepare: (sql) => this.#prepare(sql), runningMs: () => this.runningMs };
  /** The record ids that this process has seen, by their first digits. */
  readonly #seen = new Uint8Array(16 ** BUCKET_DIGITS);
  #numberSeen = 0;
  /** Held as long as the register is open. */
  readonly #lock: DatabaseSync;
  #isClosed = false;

  /** @throws {StoreUnavailable} with a message for the operator */
  static async open(options: SqliteRegisterOptions): Promise<SqliteRegister> {
    const { path } = options;
    let lock: DatabaseSync | undefined;
    let writer: Writer | undefined;
    try {
      const file = prepareFiles(path);
      const boot = bootId(options.bootIdFile);
      lock = lockClock(file, boot);
      writer = await Writer.open({ ...options, file, boot });
      return new SqliteRegister(options, file, openForReading(file), writer, lock);
    } catch (error) {
      await writer?.close();
      lock?.close();
      throw new StoreUnavailable(`the store in ${path} cannot be used: ${messageOf(error)}`, {
        cause: error,
        maybeWritten: false,
      });
    }
  }

  protected constructor(
    { timeoutMs, keepFreeBytes }: Pick<SqliteRegisterOptions, 'timeoutMs' | 'keepFreeBytes'>,
    file: string,
    database: Tables,
    writer: CommandWriter,
    lock: DatabaseSync,
  ) {
    this.#file = file;
    this.#timeoutMs = timeoutMs;
    this.#writer = writer;
    this.#lock = lock;
    this.#database = database;
    this.#select = this.#prepare(SELECT_RECORD);
    this.#maintenance = new Maintenance(file, database, writer, keepFreeBytes);
  }

  get refusing(): string | undefined {
    return this.#maintenance.shortage ?? this.#writer.failure;
  }

  get usage(): StoreUsage {
    const { freeBytes, walBytes } = this.#maintenance;
    return { queued: this.#writer.queued, walBytes, freeBytes };
  }

  /**
   * Most retries find their record here, and need no write. The first request with a key goes to the writer thread at once: each
   * commit empties the cache of this connection, so a read that finds nothing costs a fifth of a payout.
   */
  create(id: RecordId, write: Create): Promise<Reply> {
    // A replay needs no write, so it is answered even while writes fail.
    if (this.#isNew(id)) return this.#write(id, write).catch((error: unknown) => this.#orHeld(id, error));
    try {
      const held = this.#see(id);
      if (held && !held.record.revision.equals(write.record.revision))
        return Promise.resolve({ done: false, held });
    } catch {
      // The writer thread says what is there.
    }
    return this.#write(id, write);
  }

  replace(id: RecordId, write: Replace): Promise<Reply> {
    return this.#write(id, write);
  }

  read(id: RecordId): Promise<Seen | undefined> {
    return this.#reading(() => this.#see(id));
  }

  renew(id: RecordId, token: Token, leaseMs: number): Promise<'kept' | 'taken' | 'lost'> {
    return this.#writer.ask(COMMANDS.renew, () => [idBytes(id), token, leaseMs]);
  }

  async endLease(id: RecordId, token: Token): Promise<void> {
    await this.#writer.ask(COMMANDS.endLease, () => [idBytes(id), token]);
  }

  list(query: ListQuery): Promise<Page> {
    return this.#reading(() => pageOf(this.#rows, query));
  }

  idsOf(digits: string): Promise<RecordId[]> {
    return this.#reading(() => idsOf(this.#rows, digits));
  }

  countOpen(options: CountOptions): Promise<OpenCount> {
    return this.#reading(() => countOpen(this.#rows, options));
  }

  audit(id: RecordId): Promise<AuditRecord[]> {
    return this.#reading(() => {
      const sql = 'SELECT entry FROM audit WHERE record_id = ? AND expires_at > ? ORDER BY id';
      const rows = this.#prepare(sql).all(idBytes(id), this.runningMs) as unknown as [string][];
      return rows.map(([entry]) => JSON.parse(entry));
    });
  }

  readIdentity(mode: Mode): Promise<IdentityInUse | undefined> {
    return this.#reading(() => storedIdentity(this.#prepare(SELECT_IDENTITY).get(), mode, this.runningMs));
  }

  async visit(mode: Mode, replacing?: string): Promise<IdentityInUse> {
    const newId = systemRandom.token().toString('hex');
    const row = await this.#writer.ask(COMMANDS.visit, () => [mode, newId, replacing ?? null]);
    return storedIdentity(row, mode, this.runningMs) as IdentityInUse;
  }

  async health(): Promise<StoreHealth> {
    try {
      const { shortage } = this.#maintenance;
      if (shortage) throw unavailable(shortage);
      const [version] = await this.#reading(() => this.#prepare(SELECT_VERSION).get() as unknown as [number]);
      refuseOtherFormat(this.#file, version);
      await this.#writer.ask(COMMANDS.probe);
      const [copyProgress] = await this.#reading(
        () => this.#prepare('SELECT copy_mark FROM store').get() as unknown as [string | null],
      );
      if (copyProgress !== null && !copyProgress.startsWith('no ')) throw new StoreClosed();
      return { ok: true, detail: 'sqlite', warnings: [] };
    } catch (error) {
      const isClosed = error instanceof OtherFormat || error instanceof StoreClosed;
      return { ok: false, ...(isClosed && { isClosed }), detail: messageOf(error), warnings: [] };
    }
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#maintenance.close();
    // The last connection to close moves the WAL into the database file. The writer thread must do that, so it closes last.
    this.#database.close();
    await this.#writer.close();
    this.#lock.close();
  }

  /** Writes without an async function, which would add a promise to each write. */
  #write(id: RecordId, write: Create | Replace): Promise<Reply> {
    const isExecution =
      write.kind === 'create' || (write.unlessClosed && write.record?.state === 'executing');
    const refusing = isExecution ? this.refusing : undefined;
    if (refusing) return Promise.reject(unavailable(refusing));
    const { runningMs } = this.#writer;
    const values = () => valuesOfWrite(id, write, runningMs);
    return this.#writer.ask<number>(COMMANDS.write, values).then((answer) => {
      switch (answer) {
        case ANSWERS.done:
          return DONE;
        case ANSWERS.refused:
          return this.read(id).then((held) => ({ done: false, held }));
        case ANSWERS.void:
          throw unavailable('the execution was given up: its token is void');
        default:
          throw new StoreClosed();
      }
    });
  }

  /** Whether this process has surely not seen the id lately. Notes that it has now. */
  #isNew(id: RecordId): boolean {
    const bucket = Number.parseInt(id.slice(0, BUCKET_DIGITS), 16);
    if (this.#seen[bucket]) return false;
    if (++this.#numberSeen > this.#seen.length / 4) {
      this.#seen.fill(0);
      this.#numberSeen = 1;
    }
    this.#seen[bucket] = 1;
    return true;
  }

  async #orHeld(id: RecordId, error: unknown): Promise<Reply> {
    const isWritten = !(error instanceof StoreUnavailable) || error.maybeWritten;
    const held = isWritten ? undefined : await this.read(id);
    if (!held) throw error;
    return { done: false, held };
  }

  #see(id: RecordId): Held | undefined {
    return readSelected(this.#select, idBytes(id), this.runningMs);
  }

  /** Reads. While another process recovers the WAL or closes the database, tries again until the time limit. */
  async #reading<T>(read: () => T | Promise<T>): Promise<T> {
    for (const startedMs = performance.now(); ; await sleep(1)) {
      try {
        return await read();
      } catch (error) {
        if (!isBusy(error) || performance.now() - startedMs >= this.#timeoutMs) throw asUnavailable(error);
      }
    }
  }

  #prepare(sql: string): StatementSync {
    if (this.#isClosed) throw closed();
    const statement = this.#database.prepare(sql);
    statement.setReturnArrays(true);
    return statement;
  }

  /** The store's clock: see running-time.ts. */
  get runningMs(): number {
    if (this.#isClosed) throw closed();
    return this.#writer.runningMs;
  }
}

const DONE: Reply = { done: true };

function asUnavailable(error: unknown): unknown {
  // UnknownCursor is a mistake of the caller, not of the store.
  if (error instanceof StoreUnavailable || error instanceof UnknownCursor) return error;
  return unavailable(messageOf(error), false, error);
}
