import type { DatabaseSync, SQLInputValue, StatementSync } from 'node:sqlite';
import {
  type AuditRecord,
  type Lifetimes,
  MARK_LASTS_MS,
  type RecordHead,
  UnreadableRecord,
  VOID_TOKEN_MS,
} from '../contract.ts';
import { isRefusedByTrigger } from './copy-table.ts';
import { messageOf } from './database.ts';
import { countResolution } from './doubt-counter.ts';
import {
  type Answer,
  type Answers,
  type Command,
  type PackedCompletion,
  type PackedExecution,
  type PackedOwner,
  unpackBytes,
} from './messages.ts';
import { writeAudit } from './operators.ts';
import {
  isExpired,
  markOf,
  ownerIsAlive,
  prepareWrites,
  type Row,
  readSelected,
  scopeBytes,
} from './records-table.ts';
import type { Now } from './running-time.ts';
import { Sweeper } from './upkeep.ts';

type CommandOf<K extends Command['kind']> = Extract<Command, { kind: K }>;

/**
 * Applies each command to the record of its scope. Runs in the writer thread, within the transaction of a batch.
 *
 * Every decision is made here, on a row that was read and checked in the same transaction. So a row that cannot be read is
 * never treated as absent and never changed.
 */
export class Transitions {
  /** Rows changed since the batch began. */
  written = 0;
  readonly #database: DatabaseSync;
  readonly #gatewayId: string;
  readonly #lifetimes: Lifetimes;
  readonly #sweeper: Sweeper;
  readonly #statements;
  #now: Now = { runningMs: 0, wallMs: 0, bootBeganAt: 0 };

  constructor(database: DatabaseSync, gatewayId: string, lifetimes: Lifetimes) {
    this.#database = database;
    this.#gatewayId = gatewayId;
    this.#lifetimes = lifetimes;
    this.#sweeper = new Sweeper(database);
    this.#statements = prepareWrites(database);
  }

  begin(now: Now): void {
    this.#now = now;
    this.written = 0;
  }

  apply(command: Command): Answer {
    try {
      return this.#apply(command);
    } catch (error) {
      if (error instanceof UnreadableRecord) return { unreadable: error.message };
      // SQLite has undone the statement, and every command below writes with a single statement that a trigger may refuse.
      if (isRefusedByTrigger(error)) return { closed: messageOf(error) };
      throw error;
    }
  }

  #apply(command: Command): Answers[Command['kind']] {
    switch (command.kind) {
      case 'start':
        return this.#start(command);
      case 'restart':
        return this.#restart(command);
      case 'renew':
        return this.#renew(command);
      case 'complete':
      case 'create':
        return this.#complete(command);
      case 'release':
        return this.#release(command);
      case 'markInDoubt':
        return this.#markInDoubt(command);
      case 'resolve':
        return this.#resolve(command);
      case 'sweep': {
        const swept = this.#sweeper.step(this.#now.runningMs);
        this.written += swept.removed;
        return swept;
      }
      case 'mark':
        return this.#mark(command);
      case 'probe':
        this.#write(this.#statements.probe);
        return 'ok';
    }
  }

  #start(execution: CommandOf<'start'>): Answers['start'] {
    if (this.#isVoided(execution)) return 'voided';
    if (this.#insert(execution, undefined)) return 'started';
    const row = this.#read(execution);
    if (!row) {
      // The row has expired and was not swept yet.
      this.#removeExpired(execution);
      this.#insert(execution, undefined);
      return 'started';
    }
    const { record } = row;
    if (record.state !== 'executing') return 'exists';
    if (isToken(row, execution)) return 'started';
    if (record.fingerprint.equals(unpackBytes(execution.fingerprint)) && !ownerIsAlive(row, this.#now))
      this.#write(this.#statements.markDead, this.#now.wallMs, row.id);
    return 'exists';
  }

  #restart(execution: CommandOf<'restart'>): Answers['restart'] {
    if (this.#isVoided(execution)) return 'voided';
    const row = this.#read(execution);
    if (!row?.record.fingerprint.equals(unpackBytes(execution.fingerprint))) return 'changed';
    // The same restart again: its first answer was lost.
    if (row.record.state === 'executing' && isToken(row, execution)) return 'ok';
    if (row.record.state !== 'in_doubt') return 'changed';
    const { leaseMs, retentionMs, inDoubtRetentionMs } = this.#lifetimes;
    this.#write(
      this.#statements.restart,
      unpackBytes(execution.token),
      this.#gatewayId,
      this.#now.wallMs,
      leaseMs,
      retentionMs,
      inDoubtRetentionMs,
      this.#aliveAt(),
      this.#expiresIn(inDoubtRetentionMs),
      row.id,
    );
    return 'ok';
  }

  #renew(owner: CommandOf<'renew'>): Answers['renew'] {
    const row = this.#owned(owner);
    if (!row) return 'stale';
    if (row.record.state === 'completed') return 'ok';
    const lost = !ownerIsAlive(row, this.#now);
    // If the lease had lapsed, other gateways may have answered `in_doubt`.
    this.#write(this.#statements.renew, Number(lost || row.record.wasInDoubt), this.#aliveAt(), row.id);
    return lost ? 'lost' : 'ok';
  }

  #complete(execution: CommandOf<'complete' | 'create'>): Answers['complete'] {
    const row = this.#read(execution);
    if (!row) {
      if (execution.kind === 'complete') return 'absent';
      this.#removeExpired(execution);
      this.#insert(execution, execution);
      return 'ok';
    }
    if (!isToken(row, execution)) return 'stale';
    const { record, expiresAt } = row;
    if (record.state === 'completed') return 'ok';
    const { retentionMs, inDoubtRetentionMs } = record.lifetimes;
    // An executing record expires `inDoubtRetentionMs` after its start.
    const retainedUntil = expiresAt - inDoubtRetentionMs + retentionMs;
    const doubtful =
      record.wasInDoubt ||
      record.state === 'in_doubt' ||
      !ownerIsAlive(row, this.#now) ||
      // A record older than its retention would expire before the merchant's next retry.
      retainedUntil <= this.#now.runningMs;
    this.#write(
      this.#statements.complete,
      record.token,
      this.#now.wallMs,
      Number(doubtful),
      doubtful ? this.#expiresIn(inDoubtRetentionMs) : retainedUntil,
      ...completionValues(execution),
      row.id,
    );
    return 'ok';
  }

  #release(owner: CommandOf<'release'>): Answers['release'] {
    if (owner.voidToken) this.#void(owner);
    const row = this.#owned(owner);
    if (!row || row.record.state === 'completed') return 'stale';
    this.#write(this.#statements.remove, row.id);
    return 'ok';
  }

  #markInDoubt(owner: CommandOf<'markInDoubt'>): Answers['markInDoubt'] {
    if (owner.voidToken) this.#void(owner);
    const row = this.#owned(owner);
    if (!row || row.record.state === 'completed') return 'stale';
    // A record that was marked already keeps the time of that mark.
    const changedAtMs = row.record.state === 'executing' ? this.#now.wallMs : row.record.changedAtMs;
    this.#write(this.#statements.giveUp, changedAtMs, row.id);
    return 'ok';
  }

  #resolve(command: CommandOf<'resolve'>): Answers['resolve'] {
    const row = this.#owned(command);
    if (!row || row.record.state === 'completed') return 'changed';
    if (ownerIsAlive(row, this.#now)) return 'alive';
    const { record } = row;
    const { completion } = command;
    let to: AuditRecord['to'] = { as: 'released' };
    if (completion) {
      const kind = completion.body === null ? 'tombstone' : 'response';
      to = { as: 'completed', kind, status: completion.status };
    }
    // First, because a trigger refuses it while the records are being moved.
    this.#audit(command, record, to);
    countResolution(this.#database, completion ? 'completed' : 'released', command.source);
    if (completion)
      this.#write(
        this.#statements.complete,
        unpackBytes(command.newToken),
        this.#now.wallMs,
        1,
        this.#expiresIn(record.lifetimes.inDoubtRetentionMs),
        ...completionValues(completion),
        row.id,
      );
    else this.#write(this.#statements.remove, row.id);
    return 'ok';
  }

  #mark({ mode, newId }: CommandOf<'mark'>): Answers['mark'] {
    const { makeMark, countMark, protectUntil, observeUntil, readMark } = this.#statements;
    this.#write(makeMark, newId);
    this.#write(countMark);
    const until = this.#expiresIn(MARK_LASTS_MS);
    this.#write(mode === 'protect' ? protectUntil : observeUntil, until);
    return markOf(readMark.get(), mode, this.#now);
  }

  #audit({ scope, by, reason }: CommandOf<'resolve'>, from: RecordHead, to: AuditRecord['to']): void {
    writeAudit(
      this.#database,
      scopeBytes(scope),
      { atMs: this.#now.wallMs, by, reason, from, to },
      this.#now,
    );
  }

  /** The row of the scope. Undefined: there is none, or it has expired. */
  #read({ scope }: PackedOwner): Row | undefined {
    const row = readSelected(() => this.#statements.select.get(scopeBytes(scope)));
    return row && !isExpired(row, this.#now) ? row : undefined;
  }

  /** The row of the scope, if it has this token. */
  #owned(owner: PackedOwner): Row | undefined {
    const row = this.#read(owner);
    return row && isToken(row, owner) ? row : undefined;
  }

  /** Call only after {@link #read} returned undefined: then a row in the table is readable and has expired. */
  #removeExpired({ scope }: PackedOwner): void {
    this.#write(this.#statements.removeScope, scopeBytes(scope));
  }

  /** False: the scope has a row. With `completion` the record is created as completed, and as one that was in doubt. */
  #insert(execution: PackedExecution, completion: PackedCompletion | undefined): boolean {
    const { leaseMs, retentionMs, inDoubtRetentionMs } = this.#lifetimes;
    const changes = this.#write(
      this.#statements.insert,
      scopeBytes(execution.scope),
      completion ? 'completed' : 'executing',
      unpackBytes(execution.token),
      unpackBytes(execution.fingerprint),
      execution.merchant,
      execution.operation,
      execution.key,
      execution.requestId,
      this.#gatewayId,
      this.#now.wallMs,
      this.#now.wallMs,
      leaseMs,
      retentionMs,
      inDoubtRetentionMs,
      completion ? 1 : 0,
      this.#aliveAt(),
      this.#expiresIn(inDoubtRetentionMs),
      ...(completion ? completionValues(completion) : [null, null, null, null]),
    );
    return changes > 0;
  }

  #isVoided({ token }: PackedOwner): boolean {
    return this.#statements.voided.get(unpackBytes(token), this.#now.runningMs) !== undefined;
  }

  #void({ token }: PackedOwner): void {
    this.#write(this.#statements.void, unpackBytes(token), this.#expiresIn(VOID_TOKEN_MS));
  }

  #write(statement: StatementSync, ...values: SQLInputValue[]): number {
    const changes = statement.run(...values).changes as number;
    this.written += changes;
    return changes;
  }

  /** Rounded up, so that a record never seems older than it is. */
  #aliveAt = (): number => Math.ceil(this.#now.runningMs);

  #expiresIn = (durationMs: number): number => Math.ceil(this.#now.runningMs + durationMs);
}

const isToken = ({ record }: Row, { token }: PackedOwner): boolean => record.token.equals(unpackBytes(token));

function completionValues({ status, headers, body, encryptionKeyId }: PackedCompletion): SQLInputValue[] {
  return [status, headers, body === null ? null : unpackBytes(body), encryptionKeyId];
}
