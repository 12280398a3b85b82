import type { Clock } from '../../lib/clock.ts';
import { messageOf } from '../../lib/files.ts';
import { systemRandom } from '../../lib/random.ts';
import type { Emit } from '../../telemetry/emit.ts';
import { ServerClocks } from '../server-clock.ts';
import { OtherFormat, StoreClosed, type StoreHealth } from '../types.ts';
import { bytesOf } from './commands.ts';
import { requireFormat, type ServerOptions } from './connection.ts';
import type { Lanes } from './lanes.ts';
import { CLOCK } from './tables.ts';

/** The options of a register. */
export interface PostgresOptions extends ServerOptions {
  emit?: Emit;
  /** How many transactions of the application run at the same time, each on a connection of its own. Default 10. */
  maxTransactions?: number;
  clock: Clock;
}

/** A transaction that is open for so long keeps rows that are gone from being removed. */
const LONG_TRANSACTION = '1 hour';
/** More rows that are gone than a vacuum leaves that can remove them. */
const MANY_DEAD = { rows: 100_000, forEach: 10 };

/** Looks at the settings of the server, and writes a probe. */
export class PostgresHealth {
  /** The server waits for synchronous standbys. */
  hasStandbys = false;
  #dangers: string[] = [];
  readonly #clocks: ServerClocks;
  readonly #lanes: Lanes;
  readonly #options: PostgresOptions;

  constructor(lanes: Lanes, options: PostgresOptions) {
    this.#lanes = lanes;
    this.#options = options;
    this.#clocks = new ServerClocks(options.clock, options.emit);
    lanes.onConnected(() => void this.inspect().catch(() => {}));
  }

  /** A role that may not read all statistics sees how many standbys there are, and not which. @throws {StoreUnavailable} */
  async inspect(): Promise<void> {
    const text = `SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
      (SELECT count(*)::int FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'),
      (SELECT count(*)::int FROM pg_stat_replication WHERE coalesce(sync_state, 'sync') IN ('sync', 'quorum')),
      (SELECT max(${CLOCK} - xact_start) > interval '${LONG_TRANSACTION}' FROM pg_stat_activity WHERE backend_xmin IS NOT NULL),
      -- The counters begin at zero after a crash. What the last vacuum counted, reltuples, stays.
      (SELECT n_dead_tup > greatest(${MANY_DEAD.rows}, ${MANY_DEAD.forEach} * greatest(n_live_tup, reltuples))
        FROM pg_stat_user_tables JOIN pg_class ON oid = relid WHERE oid = to_regclass('${this.#options.schema}.records'))`;
    const [row] =
      await this.#lanes.ask<[string, string, string, number, number, boolean | null, boolean | null]>(text);
    const [fsync, pages, standbys, replicas, synchronous, isLong, hasDead] = row as NonNullable<typeof row>;
    this.hasStandbys = standbys !== '';
    const quorum = quorumIn(standbys);
    const dangers = [
      fsync !== 'on' &&
        `postgres runs with fsync ${fsync}: if its machine fails, records are lost and payouts may run again`,
      pages !== 'on' &&
        `postgres runs with full_page_writes ${pages}: if its machine fails, records may be damaged`,
      standbys === '' &&
        replicas > 0 &&
        `postgres has ${replicas} ${replicas === 1 ? 'standby' : 'standbys'} and no synchronous_standby_names: a failover loses the latest records, and their keys can be paid twice`,
      standbys !== '' &&
        synchronous === 0 &&
        'postgres waits for a synchronous standby, and none is connected: payouts get 503',
      quorum !== undefined &&
        `postgres waits for any ${quorum}: after a failover to one that lacks the latest records, their keys can be paid twice`,
      isLong &&
        `a transaction in the database is open for more than ${LONG_TRANSACTION}: rows that are gone cannot be removed`,
      hasDead &&
        `the table of records has more than ${MANY_DEAD.forEach} rows that are gone for each one that is there: until vacuum has removed them, the store becomes slower`,
    ];
    this.#dangers = dangers.filter((danger) => typeof danger === 'string');
  }

  async check(): Promise<StoreHealth> {
    const { schema } = this.#options;
    try {
      await this.inspect();
      // Servers that take over from each other have one address.
      await this.#clocks.compare('', () => this.#timeOf());
      const [[copyProgress, format] = []] = await this.#lanes.ask<[string | null, number]>(
        `SELECT progress, format FROM ${schema}.store, ${schema}.copy`,
      );
      requireFormat(format, schema);
      if (copyProgress && !copyProgress.startsWith('no ')) throw new StoreClosed();
      await this.#lanes.change(`SELECT FROM ${schema}.write($1)`, [probe()]);
      return { ok: true, detail: 'postgres', warnings: this.#warnings() };
    } catch (error) {
      const isClosed = error instanceof OtherFormat || error instanceof StoreClosed;
      return {
        ok: false,
        ...(isClosed && { isClosed }),
        detail: messageOf(error),
        warnings: this.#warnings(),
      };
    }
  }

  async #timeOf(): Promise<number | undefined> {
    const [[wallMs] = []] = await this.#lanes.ask<[number]>(
      `SELECT (extract(epoch FROM ${CLOCK}) * 1000)::float8`,
    );
    return wallMs;
  }

  #warnings(): string[] {
    return [...this.#dangers, ...this.#clocks.warnings()];
  }
}

/** How many standbys a write waits for, of more that could be promoted, if `synchronous_standby_names` is such a quorum. */
function quorumIn(names: string): string | undefined {
  const [, needed, list] = /^\s*ANY\s+(\d+)\s*\((.*)\)\s*$/is.exec(names) ?? [];
  if (list === undefined) return undefined;
  const named: string[] = list.match(/"[^"]*"|[^\s,"]+/g) ?? [];
  if (named.includes('*')) return `${needed} of several standbys`;
  return named.length > Number(needed) ? `${needed} of ${named.length} standbys` : undefined;
}

/** As much as the start of a long request. */
const PROBE_BYTES = 1024;

/**
 * Two commands of one transaction: a record that is written and removed. So a check finds what a start finds: tables that cannot grow, a
 * table that another session has locked, a function that fails. No other session sees the record. Its id is longer than those of other
 * records, so it is never one of theirs.
 */
function probe(): string {
  const id = bytesOf(Buffer.concat([systemRandom.token(), systemRandom.token()]));
  const revision = bytesOf(systemRandom.token());
  const record = bytesOf(Buffer.alloc(PROBE_BYTES));
  return JSON.stringify([
    { n: 0, kind: 'create', id, revision, record, state: 'executing', lives_ms: 0, unless_closed: true },
    { n: 1, kind: 'replace', id, expected: revision },
  ]);
}
