import type { RecordId, Token } from '../../lib/brands.ts';
import { systemRandom } from '../../lib/random.ts';
import { decodeRecord } from '../codec.ts';
import type { AuditRecord } from '../doubts.ts';
import type { Create, OpenCount, Page, Register, Replace, Reply, Seen } from '../register.ts';
import {
  type IdentityInUse,
  type Mode,
  StoreClosed,
  type StoreHealth,
  StoreUnavailable,
  VISIT_LASTS_MS,
} from '../types.ts';
import type { Answered } from './batch.ts';
import { bytesOf, columnsOf, commandOf } from './commands.ts';
import { NOT_WRITTEN } from './connection.ts';
import { PostgresHealth, type PostgresOptions } from './health.ts';
import { Lanes } from './lanes.ts';
import { countOpen, idsOf, pageOf } from './operators.ts';
import { Sweep } from './sweep.ts';
import { CLOCK, IDENTITY, IS_LIVE, leftMs } from './tables.ts';
import { PostgresTransactions } from './transactions.ts';

/**
 * The store of teams that run PostgreSQL. A change is one call of the function `write` (functions.ts), which applies a batch of commands in
 * one transaction: it decides each under the lock of its row, so a refusal costs no second round trip.
 *
 * **Durable**: a command is answered when its transaction is committed with `synchronous_commit` on or stricter, so with synchronous
 * standbys when they have it too. What is only read for an answer waits for them as well.
 */
export class PostgresRegister implements Register {
  readonly lanes: Lanes;
  readonly schema: string;
  readonly #health: PostgresHealth;
  readonly #sweep: Sweep;
  readonly transactions: PostgresTransactions;

  /** @throws {StoreUnavailable} with a message for the operator */
  static async open(options: PostgresOptions): Promise<PostgresRegister> {
    const register = new PostgresRegister(options);
    try {
      await register.lanes.open();
      await register.#health.inspect();
      return register;
    } catch (error) {
      await register.close();
      throw error;
    }
  }

  private constructor(options: PostgresOptions) {
    this.schema = options.schema;
    this.lanes = new Lanes(options);
    this.#health = new PostgresHealth(this.lanes, options);
    this.#sweep = new Sweep(this.lanes, options);
    this.transactions = new PostgresTransactions(options, this.lanes);
  }

  get replicates(): boolean {
    return this.#health.hasStandbys;
  }

  get refusing(): string | undefined {
    return this.lanes.isConnected ? undefined : 'postgres: not connected';
  }

  connectionOf(): unknown {
    return this.lanes.connection;
  }

  onConnected(act: () => void): void {
    this.lanes.onConnected(act);
  }

  create(id: RecordId, { record, expiresInMs }: Create): Promise<Reply> {
    const { token, operation } = record;
    const along = { token: bytesOf(token), unless_closed: true, lives_ms: expiresInMs, operation };
    return this.#command('create', id, { ...along, ...columnsOf(record) }).then(replyOf);
  }

  replace(id: RecordId, write: Replace): Promise<Reply> {
    const { revision, record, operation, expiresInMs, audit, counted } = write;
    return this.#command('replace', id, {
      expected: bytesOf(revision),
      lives_ms: expiresInMs === 'unchanged' ? undefined : expiresInMs,
      unless_leased: write.unlessLeased,
      unless_closed: write.unlessClosed,
      ends: bytesOf(write.endLeaseOf),
      voids: bytesOf(write.voidToken),
      audit: audit && JSON.stringify(audit),
      counted: counted && `${counted.as} ${counted.by}`,
      operation,
      ...(record && columnsOf(record)),
    }).then(replyOf);
  }

  async read(id: RecordId, mustLast = false): Promise<Seen | undefined> {
    if (!mustLast || !this.replicates) {
      const text = `SELECT record, ${leftMs('expires_at')}, coalesce(leased_until > ${CLOCK}, false),
          current_setting('synchronous_standby_names') <> ''
        FROM ${this.schema}.records WHERE id = $1 AND ${IS_LIVE}`;
      const [row] = await this.lanes.ask<[Buffer, number, boolean, boolean]>(text, [Buffer.from(id, 'hex')]);
      if (!row) return undefined;
      const [record, livesMs, isLeased, hasStandbys] = row;
      // The server may have begun to wait for them since the last look at its settings.
      this.#health.hasStandbys = hasStandbys;
      if (!mustLast || !hasStandbys) return seenOf(record, livesMs, isLeased);
    }
    const reply = replyOf(await this.#command('read', id, {}));
    return reply.done ? undefined : reply.held;
  }

  async renew(id: RecordId, token: Token, leaseMs: number): Promise<'kept' | 'taken' | 'lost'> {
    const [, answer] = await this.#command('renew', id, { token: bytesOf(token), lives_ms: leaseMs });
    return answer as 'kept' | 'taken' | 'lost';
  }

  async endLease(id: RecordId, token: Token): Promise<void> {
    await this.#command('end', id, { ends: bytesOf(token) });
  }

  list(query: { open: boolean; limit: number; cursor?: string | undefined }): Promise<Page> {
    return pageOf(this, query);
  }

  idsOf(digits: string): Promise<RecordId[]> {
    return idsOf(this, digits);
  }

  countOpen(options: { executingSinceMs: number; signal?: AbortSignal | undefined }): Promise<OpenCount> {
    return countOpen(this, options);
  }

  async audit(id: RecordId): Promise<AuditRecord[]> {
    const text = `SELECT entry FROM ${this.schema}.audit WHERE id = $1 AND expires_at > ${CLOCK} ORDER BY number`;
    const rows = await this.lanes.ask<[string]>(text, [Buffer.from(id, 'hex')]);
    return rows.map(([entry]) => JSON.parse(entry));
  }

  async readIdentity(mode: Mode): Promise<IdentityInUse | undefined> {
    const text = `SELECT r.idempotency_key, (r.cause::bigint - ${lostBy(this.schema)})::float8, ${otherOf(mode)}_until > ${CLOCK}
      FROM ${this.schema}.store LEFT JOIN ${this.schema}.records r ON r.id = ${IDENTITY}`;
    return identityIn(await this.lanes.ask<IdentityRow>(text));
  }

  async visit(mode: Mode, replacing?: string): Promise<IdentityInUse> {
    // The lock makes visits take turns, so that one of them counts the promotion.
    const text = `WITH before AS MATERIALIZED (SELECT ${lostBy(this.schema)} AS lost FROM ${this.schema}.store FOR UPDATE),
      visited AS (
        INSERT INTO ${this.schema}.records AS r (id, state, due, operation, idempotency_key, cause)
          SELECT ${IDENTITY}, 'absent', 'infinity', 'the identity of the store', $1, '1' FROM before
          ON CONFLICT (id) DO UPDATE SET cause = r.cause::bigint - (SELECT lost FROM before) + 1,
            idempotency_key = coalesce(nullif(r.idempotency_key, $2), $1)
          RETURNING idempotency_key, cause)
      UPDATE ${this.schema}.store SET timeline = ${this.schema}.timeline(),
        waits = current_setting('synchronous_standby_names') <> '',
        ${mode}_until = ${CLOCK} + interval '${VISIT_LASTS_MS} ms'
      FROM visited RETURNING idempotency_key, visited.cause::float8, ${otherOf(mode)}_until > ${CLOCK}`;
    const values = [systemRandom.token().toString('hex'), replacing ?? null];
    return identityIn(await this.lanes.change<IdentityRow>(text, values)) as IdentityInUse;
  }

  health(): Promise<StoreHealth> {
    return this.#health.check();
  }

  async close(): Promise<void> {
    this.#sweep.close();
    await this.transactions.close();
    await this.lanes.close();
  }

  #command(kind: string, id: RecordId, members: object): Promise<Answered> {
    return new Promise((resolve, reject) => {
      const json = commandOf(kind, id, members).slice(1, -1);
      this.lanes.write({ json, resolve, reject });
    });
  }
}

const DONE: Reply = { done: true };

/** @throws {StoreUnavailable} not written */
function replyOf([, answer, held, livesMs, isLeased]: Answered): Reply {
  switch (answer) {
    case 'done':
      return DONE;
    case 'refused':
      return { done: false, held: held ? seenOf(held, livesMs as number, isLeased as boolean) : undefined };
    case 'void':
      throw new StoreUnavailable('postgres: the execution was given up: its token is void', NOT_WRITTEN);
    default:
      throw new StoreClosed();
  }
}

/** @throws {UnreadableRecord} */
const seenOf = (bytes: Buffer, expiresInMs: number, isLeased: boolean): Seen => ({
  record: decodeRecord(bytes),
  expiresInMs,
  isLeased,
});

/** More visits than a store ever gets. */
const ALL_VISITS = 1_000_000_000;

/**
 * What a promotion since the last visit takes off the count of visits, if that visit did not wait for standbys: the store lacks what they
 * had not received, so it counts as older. It stays off, because a visit by a gateway that refuses no start must not hide it from one that
 * has not compared yet. In a statement on the row of `store`.
 */
const lostBy = (schema: string): string =>
  `CASE WHEN waits OR timeline IS NOT DISTINCT FROM ${schema}.timeline() THEN 0 ELSE ${ALL_VISITS} END`;

const otherOf = (mode: Mode): Mode => (mode === 'protect' ? 'observe' : 'protect');

type IdentityRow = [identity: string | null, visits: number, otherMode: boolean];

function identityIn([row]: IdentityRow[]): IdentityInUse | undefined {
  const [id, count, otherMode] = row ?? [null, 0, false];
  return id === null ? undefined : { id, count, otherMode };
}
