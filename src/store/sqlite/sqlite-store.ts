import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope, Token } from '../../lib/brands.ts';
import type { Clock } from '../../lib/clock.ts';
import type { Completion } from '../../lib/exchange.ts';
import { newToken } from '../../lib/random.ts';
import {
  type AuditRecord,
  type CountedNote,
  type Execution,
  type Fenced,
  type IdempotencyRecord,
  type ListFilter,
  type Listing,
  type Mode,
  OtherFormat,
  type Owner,
  type PeekAnswer,
  type Resolution,
  type Resolved,
  type StartAnswer,
  type Store,
  type StoreHealth,
  type StoreOptions,
  StoreUnavailable,
  type StoreUsage,
  UnknownCursor,
  type UsedMark,
} from '../contract.ts';
import { meaningOf } from '../copy-mark.ts';
import type { CountOptions, DoubtCount } from '../doubt-count.ts';
import { ResponseCipher } from '../response-cipher.ts';
import { readMarkText } from './copy-table.ts';
import {
  messageOf,
  openForReading,
  prepareFiles,
  refuseOtherSchema,
  resultCodeOf,
  SQLITE_BUSY,
  versionOf,
} from './database.ts';
import { DoubtCounter } from './doubt-counter.ts';
import { packCompletion, packExecution, packOwner } from './messages.ts';
import { ListReader, readAudit } from './operators.ts';
import {
  existingAnswer,
  isExpired,
  markOf,
  ROW_COLUMNS,
  type Row,
  readSelected,
  SELECT_MARK,
  scopeBytes,
} from './records-table.ts';
import { bootId, type Now, RunningTime } from './running-time.ts';
import { DiskReserve, Upkeep } from './upkeep.ts';
import { closed, Writer } from './writer.ts';

export interface SqliteStoreOptions extends StoreOptions {
  /** The folder of the database. The store makes it if it is missing, readable and writable by this user only. */
  path: string;
  /** After this time a write fails with StoreUnavailable, though it may still happen. */
  timeoutMs: number;
  clock: Clock;
  /** New executions are refused while the disk has less free space than this. Default: 64 MiB. */
  keepFreeBytes?: number;
  /** Called when the writer thread has died, before a new one replaces it. */
  onWriterReplaced?: (error: Error) => void;
  /** Called for each transaction that changed something, with its duration from BEGIN to the end of COMMIT. */
  onCommitted?: (ms: number) => void;
  /** The file with the boot id. Default: that of Linux. */
  bootIdFile?: string;
  /** Default: responses are not encrypted. */
  cipher?: ResponseCipher;
}

/**
 * The embedded store: one SQLite database, which all processes of a machine may share.
 *
 * Reads run here on the main thread and never wait for a lock. Every write goes to the writer thread, which reads the record
 * again within its transaction and decides there (transitions.ts).
 */
export class SqliteStore implements Store {
  readonly #file: string;
  readonly #timeoutMs: number;
  readonly #database: DatabaseSync;
  readonly #writer: Writer;
  readonly #time: RunningTime;
  readonly #diskReserve: DiskReserve;
  readonly #upkeep: Upkeep;
  readonly #select: StatementSync;
  readonly #listReader: ListReader;
  readonly #doubtCounter: DoubtCounter;
  readonly #cipher: ResponseCipher;
  #isClosed = false;

  /** @throws {StoreUnavailable} with a message for the operator */
  static async open(options: SqliteStoreOptions): Promise<SqliteStore> {
    const { path, timeoutMs, gatewayId, lifetimes, clock } = options;
    const { onWriterReplaced = () => {}, onCommitted = () => {} } = options;
    try {
      const file = prepareFiles(path);
      const { writer, clock: state } = await Writer.open({
        data: { file, timeoutMs, gatewayId, lifetimes, boot: bootId(options.bootIdFile) },
        monotonicMs: () => clock.monotonicMs(),
        onReplaced: onWriterReplaced,
        onCommitted,
      });
      try {
        return new SqliteStore(options, file, writer, new RunningTime(state, clock));
      } catch (error) {
        await writer.close();
        throw error;
      }
    } catch (error) {
      throw new StoreUnavailable(`the store in ${path} cannot be used: ${messageOf(error)}`, {
        cause: error,
        maybeWritten: false,
      });
    }
  }

  private constructor(options: SqliteStoreOptions, file: string, writer: Writer, time: RunningTime) {
    this.#file = file;
    this.#timeoutMs = options.timeoutMs;
    this.#cipher = options.cipher ?? new ResponseCipher();
    this.#writer = writer;
    this.#time = time;
    writer.useClock(time);
    this.#database = openForReading(file);
    this.#select = this.#database.prepare(`SELECT ${ROW_COLUMNS} FROM records WHERE scope = ?`);
    this.#select.setReturnArrays(true);
    this.#listReader = new ListReader(this.#database, this.#cipher, () => this.#now());
    this.#doubtCounter = new DoubtCounter(this.#database, () => this.#now());
    this.#diskReserve = new DiskReserve(options.path, `${file}-wal`, options.keepFreeBytes);
    this.#upkeep = new Upkeep(
      this.#database,
      writer,
      () => this.#now(),
      () => this.#diskReserve.shortage === undefined,
    );
  }

  get refusing(): string | undefined {
    return this.#diskReserve.shortage ?? this.#writer.failure;
  }

  get usage(): StoreUsage {
    const { freeBytes, walBytes } = this.#diskReserve;
    return { queued: this.#writer.queued, walBytes, freeBytes };
  }

  async start(execution: Execution): Promise<StartAnswer> {
    for (;;) {
      // Most retries find their record and need no write.
      const existing = await this.#reading(() => this.#existing(execution));
      if (existing) return existing;
      this.#refuseNew();
      const answer = await this.#writer.write(packExecution('start', execution));
      if (answer === 'started') return { kind: 'started' };
      if (answer === 'voided') throw voided();
    }
  }

  async peek({ scope, fingerprint }: Pick<Execution, 'scope' | 'fingerprint'>): Promise<PeekAnswer> {
    const { row, now } = await this.#reading(() => this.#read(scope));
    return row ? existingAnswer(row, fingerprint, now) : { kind: 'absent' };
  }

  async restart(execution: Execution): Promise<'ok' | 'changed'> {
    this.#refuseNew();
    const answer = await this.#writer.write(packExecution('restart', execution));
    if (answer === 'voided') throw voided();
    return answer;
  }

  renew(owner: Owner): Promise<Fenced | 'lost'> {
    return this.#writer.write({ kind: 'renew', ...packOwner(owner) });
  }

  async complete(execution: Execution, completion: Completion): Promise<Fenced> {
    const { scope, token } = packOwner(execution);
    const packed = packCompletion(this.#cipher.seal(execution.scope, completion));
    const { status, headers, body, encryptionKeyId } = packed;
    const answer = await this.#writer.write({
      kind: 'complete',
      scope,
      token,
      status,
      headers,
      body,
      encryptionKeyId,
    });
    if (answer !== 'absent') return answer;
    return await this.#writer.write({ ...packExecution('start', execution), ...packed, kind: 'create' });
  }

  release(owner: Owner, { voidToken = false }: { voidToken?: boolean } = {}): Promise<Fenced> {
    return this.#writer.write({ kind: 'release', voidToken, ...packOwner(owner) });
  }

  takeBack = (owner: Owner) => this.release(owner, { voidToken: true });
  isOwner = async () => true;

  markInDoubt(owner: Owner, _cause = '', { voidToken = false } = {}): Promise<Fenced> {
    return this.#writer.write({ kind: 'markInDoubt', voidToken, ...packOwner(owner) });
  }

  async get(scope: Scope): Promise<IdempotencyRecord | undefined> {
    const { row } = await this.#reading(() => this.#read(scope));
    return row?.record;
  }

  async expiresInMs(scope: Scope): Promise<number | undefined> {
    const { row, now } = await this.#reading(() => this.#read(scope));
    return row && row.expiresAt - now.runningMs;
  }

  async list(filter: ListFilter): Promise<Listing> {
    const page = () => this.#listReader.page(filter);
    return await page().catch((error) => this.#readLater(page, error));
  }

  resolve(scope: Scope, seen: Token, resolution: Resolution, note: CountedNote): Promise<Resolved> {
    const completion =
      resolution.as === 'completed'
        ? packCompletion(this.#cipher.seal(scope, resolution.completion))
        : undefined;
    const { by, reason, source = 'operator' } = note;
    return this.#writer.write({
      kind: 'resolve',
      ...packOwner({ scope, token: seen }),
      newToken: newToken().toString('latin1'),
      completion,
      ...{ by, reason, source },
    });
  }

  async countDoubts(options: CountOptions): Promise<DoubtCount> {
    const count = () => this.#doubtCounter.count(options);
    return await count().catch((error) => this.#readLater(count, error));
  }

  async audit(scope: Scope): Promise<AuditRecord[]> {
    return await this.#reading(() => readAudit(this.#database, scope, this.#now()));
  }

  async readMark(mode: Mode): Promise<UsedMark | undefined> {
    const row = await this.#reading(() => this.#database.prepare(SELECT_MARK).get());
    return row && markOf(row, mode, this.#now());
  }

  mark(mode: Mode): Promise<UsedMark> {
    return this.#writer.write({ kind: 'mark', mode, newId: newToken().toString('hex') });
  }

  async health(): Promise<StoreHealth> {
    try {
      const { shortage } = this.#diskReserve;
      if (shortage) return { ok: false, detail: `sqlite: ${shortage}`, warnings: [] };
      refuseOtherSchema(this.#file, await this.#reading(() => versionOf(this.#database)));
      await this.#writer.write({ kind: 'probe' });
      const { closed, warning } = meaningOf(await this.#reading(() => readMarkText(this.#database)));
      if (closed) return { ok: false, isClosed: true, detail: `sqlite: ${closed}`, warnings: [] };
      return { ok: true, detail: 'sqlite', warnings: warning ? [warning] : [] };
    } catch (error) {
      return {
        ok: false,
        ...(error instanceof OtherFormat && { isClosed: true }),
        detail: messageOf(error),
        warnings: [],
      };
    }
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#upkeep.close();
    this.#diskReserve.close();
    // The last connection to close moves the WAL into the database file. The writer thread must do that, so it closes last.
    this.#database.close();
    await this.#writer.close();
  }

  /** The answer, if it needs no write. Undefined: there is no record, or a dead owner's record must be marked in doubt. */
  #existing({ scope, fingerprint, token }: Execution): StartAnswer | undefined {
    const { row, now } = this.#read(scope);
    if (!row) return undefined;
    const { record } = row;
    // The same start again: its first answer was lost.
    if (record.state === 'executing' && record.token.equals(token)) return { kind: 'started' };
    const answer = existingAnswer(row, fingerprint, now);
    return record.state === 'executing' && answer.kind === 'in_doubt' ? undefined : answer;
  }

  #read(scope: Scope): { row: Row<IdempotencyRecord> | undefined; now: Now } {
    const now = this.#now();
    const row = readSelected(() => this.#select.get(scopeBytes(scope)));
    if (!row || isExpired(row, now)) return { row: undefined, now };
    row.record = this.#cipher.open(scope, row.record);
    return { row: row as Row<IdempotencyRecord>, now };
  }

  /** Reads synchronously. If the read fails, returns a promise, which tries again while the database is busy. */
  #reading<T>(read: () => T): T | Promise<T> {
    try {
      return read();
    } catch (error) {
      return this.#readLater(read, error);
    }
  }

  /** Tries again until the time limit, because another process may be recovering the WAL or closing the database. */
  async #readLater<T>(read: () => T | Promise<T>, cause: unknown): Promise<T> {
    const startedMs = performance.now();
    for (let error = cause; ; ) {
      const isLate = performance.now() - startedMs >= this.#timeoutMs;
      if (resultCodeOf(error) !== SQLITE_BUSY || isLate) throw asUnavailable(error);
      await sleep(1);
      try {
        return await read();
      } catch (again) {
        error = again;
      }
    }
  }

  #now(): Now {
    if (this.#isClosed) throw closed();
    return this.#time.now();
  }

  #refuseNew(): void {
    const { refusing } = this;
    if (refusing) throw new StoreUnavailable(`sqlite: ${refusing}`, { maybeWritten: false });
  }
}

const voided = () =>
  new StoreUnavailable('the execution was given up: its token is voided', { maybeWritten: false });

function asUnavailable(error: unknown): unknown {
  // UnknownCursor is a mistake of the caller, not of the store.
  if (error instanceof StoreUnavailable || error instanceof UnknownCursor) return error;
  return new StoreUnavailable(`sqlite: ${messageOf(error)}`, { cause: error, maybeWritten: false });
}
