import { createRequire } from 'node:module';
import { checkServerIdentity as isNamed, type PeerCertificate } from 'node:tls';
import type Pg from 'pg';
import type { ClientConfig, CustomTypesConfig, Client as PgClient } from 'pg';
import type { ClientTls } from '../../lib/certificate.ts';
import { messageOf } from '../../lib/files.ts';
import { KeyLocked } from '../register.ts';
import type { PostgresSection } from '../store-options.ts';
import { OtherFormat, STORE_FORMAT, StoreUnavailable } from '../types.ts';
import { functionsOf, otherFunctions } from './functions.ts';
import { OTHER_SERVER, serverOf } from './tables.ts';

/** The section `store`, and what else a connection needs. */
export interface ServerOptions
  extends Pick<PostgresSection, 'url' | 'schema' | 'timeoutMs' | 'connectTimeoutMs'> {
  /** Default: no TLS. True: the server's certificate must come from a well-known authority. */
  tls?: ClientTls | boolean | undefined;
  /** When the server cancels a statement, in milliseconds. Default: `timeoutMs`. */
  statementMs?: number;
}

/** A statement that the server prepares once for each connection. `name` belongs to its text. */
export interface Statement {
  name: string;
  text: string;
}

/**
 * SQLSTATE classes of errors after which a transaction may have been committed all the same: the connection or the server ends, as it
 * does when a commit finds the disk full.
 */
const PERHAPS_WRITTEN = /^(?:08|53|57P|58|F0|XX)/;
export const LOCK_NOT_AVAILABLE = '55P03';
/** The tables, the schema or the function are missing. */
const NOT_PREPARED = new Set(['3F000', '42P01', '42883']);
const NO_RIGHT = '42501';
/** What warns, in each transaction, that the server will soon assign no more numbers for transactions. It does not doubt the COMMIT. */
const OF_WRAPAROUND: ReadonlySet<string | undefined> = new Set(['GetNewTransactionId', 'GetNewMultiXactId']);
const SHOWN =
  "oncegate store prepare --print shows the SQL for the owner of the database, with the rights of the gateway's role";
/** The statement is unknown, or another client has prepared it on the connection. */
const OF_ANOTHER_CLIENT = new Set(['26000', '42P05']);

/** A wait for a lock ends before the two other limits do, so that the error names the lock. */
const lockMs = (timeoutMs: number) => Math.ceil(timeoutMs / 2);

/** How columns are read, by the numbers of their types. The parsers of `pg` belong to the whole process: an application may replace them. */
const PARSERS: Readonly<Record<number, (text: string) => unknown>> = {
  16: (bool) => bool === 't',
  17: (bytea) => Buffer.from(bytea.slice(2), 'hex'),
  20: Number,
  23: Number,
  701: Number,
};
const OWN_PARSERS = {
  getTypeParser: (type: number) => PARSERS[type] ?? String,
} as unknown as CustomTypesConfig;

/** What the defaults of a role must not change. `statement_timeout` does not cover the wait for a standby, which nothing may cancel. */
const sessionOf = ({
  timeoutMs,
  statementMs = timeoutMs,
}: ServerOptions) => `SET default_transaction_isolation = 'read committed'; SET client_encoding = 'UTF8';
  SET DateStyle = 'ISO'; SET bytea_output = 'hex'; SET extra_float_digits = 1; SET client_min_messages = 'warning'; SET lock_timeout = ${lockMs(timeoutMs)}; SET statement_timeout = ${statementMs};
  SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')`;

/** What a connection leads to. A server that was started again is another one, and so is one whose tables were made again. */
const selectServer = ({ schema }: ServerOptions) =>
  `SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('server_encoding'),
    ${serverOf(schema)}, pg_backend_pid()`;
const OLDEST_VERSION = 130_000;
const CLOSES_WITHIN_MS = 500;

/** One connection to the server. It runs one statement at a time. */
export class Connection {
  readonly #client: PgClient;
  /** Names the server process and the tables. */
  readonly server: string;
  readonly pid: number;
  isOpen = true;
  #warning: string | undefined;

  /**
   * @param ended called once, when the connection can be used no longer
   * @param check looks at the schema
   * @param limitMs how long it may take
   * @throws {StoreUnavailable} with a message for the operator
   */
  static async open(
    options: ServerOptions,
    ended: () => void,
    check = (connection: Connection) => connection.requireSchema(options.schema),
    limitMs = limitOf(options),
  ): Promise<Connection> {
    const { Client } = loadedPackage();
    const client = new Client({ ...configOf(options), types: OWN_PARSERS });
    // A server that is frozen accepts connections and answers nothing.
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      destroy(client);
    }, limitMs);
    // Without a listener an error on an idle connection would end the process.
    client.on('error', ended);
    client.on('end', ended);
    try {
      await client.connect();
      await client.query(sessionOf(options));
      const { rows } = await client.query({ text: selectServer(options), rowMode: 'array' });
      const [version, isStandby, encoding, server, pid] = rows[0] as [
        number,
        boolean,
        string,
        string,
        number,
      ];
      if (version < OLDEST_VERSION)
        throw new StoreUnavailable('postgres is too old: 13 or newer is needed', NOT_WRITTEN);
      if (isStandby) throw new StoreUnavailable('postgres is a standby, which takes no writes', NOT_WRITTEN);
      if (encoding !== 'UTF8')
        throw new StoreUnavailable(
          `the postgres database has the encoding ${encoding}: it must be UTF8`,
          NOT_WRITTEN,
        );
      const connection = new Connection(client, server, pid);
      await check(connection);
      return connection;
    } catch (error) {
      destroy(client);
      if (isLate) throw new StoreUnavailable(`postgres: no connection within ${limitMs} ms`, NOT_WRITTEN);
      throw failureOf(error, options.schema, false);
    } finally {
      clearTimeout(timer);
    }
  }

  private constructor(client: PgClient, server: string, pid: number) {
    this.#client = client;
    this.server = server;
    this.pid = pid;
    client.once('end', () => {
      this.isOpen = false;
    });
    // The severity is a word in the server's language, and the code is not.
    client.on('notice', ({ code, routine, message }) => {
      if (code !== '00000' && !OF_WRAPAROUND.has(routine)) this.#warning = message;
    });
  }

  /**
   * Runs one statement in a transaction of its own.
   *
   * @returns the rows as arrays
   * @throws what `pg` throws
   * @throws {StoreUnavailable} perhaps written: the server warns that standbys may not have the transaction
   */
  async run<Row extends unknown[]>({ name, text }: Statement, values: unknown[]): Promise<Row[]> {
    const { rows } = await this.#unwarned(this.#client.query<Row>({ name, text, values, rowMode: 'array' }));
    return rows;
  }

  /** Runs statements without values in one transaction. @throws as {@link run} */
  async script(text: string): Promise<void> {
    await this.#unwarned(this.#client.query(text));
  }

  /** @param sent in this turn: no notice of it can have come */
  async #unwarned<T>(sent: Promise<T>): Promise<T> {
    this.#warning = undefined;
    const result = await sent.catch((error: unknown) => {
      // The address may lead to another server now: a new connection is checked before it is used.
      if (isOtherServer(error)) this.drop();
      throw error;
    });
    if (this.#warning !== undefined) throw new StoreUnavailable(`postgres: ${this.#warning}`);
    return result;
  }

  /** Ends it at once. The server may still execute what was sent. */
  drop(): void {
    this.isOpen = false;
    destroy(this.#client);
  }

  /** Resolves when it is closed. A server that is frozen closes nothing. */
  async close(): Promise<void> {
    this.isOpen = false;
    const timer = setTimeout(() => destroy(this.#client), CLOSES_WITHIN_MS);
    await this.#client.end().catch(() => {});
    clearTimeout(timer);
  }

  /**
   * @throws {OtherFormat} if the schema is one of another version
   * @throws {StoreUnavailable} if a right is missing, or functions are those of another version
   */
  async requireSchema(schema: string): Promise<void> {
    const names = await this.otherFunctions(schema);
    if (names !== null)
      throw new StoreUnavailable(
        `postgres: the functions ${names} of the schema ${schema} are not those of this version: run oncegate store prepare, which replaces them`,
        NOT_WRITTEN,
      );
  }

  /**
   * Looks at the tables.
   *
   * @returns the names of the functions that are missing or those of another version, if there are any
   * @throws {OtherFormat} if the schema is one of another version
   * @throws {StoreUnavailable} if a right is missing
   */
  async otherFunctions(schema: string): Promise<string | null> {
    const text = `SELECT format, (SELECT bool_and(has_table_privilege(oid, needed))
        FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) needed
        WHERE relnamespace = '${schema}'::regnamespace AND relkind = 'r'), (${otherFunctions(schema)})
      FROM ${schema}.store`;
    const functions = functionsOf(schema);
    const values = [[...functions.keys()], [...functions.values()]];
    const [[found, mayWrite, names] = []] = await this.run<[number, boolean, string | null]>(
      { name: '', text },
      values,
    );
    requireFormat(found, schema);
    // A payout would be started and sent, and only its complete would be refused.
    if (!mayWrite)
      throw new StoreUnavailable(
        `postgres: the role may not write all tables of the schema ${schema}: ${SHOWN}`,
        NOT_WRITTEN,
      );
    return names ?? null;
  }
}

export const isOtherServer = (error: unknown): boolean => (error as { code?: unknown }).code === OTHER_SERVER;

/** @throws {OtherFormat} */
export function requireFormat(found: number | undefined, schema: string): void {
  if (found !== STORE_FORMAT)
    throw new OtherFormat(
      `the schema ${schema} has records of format ${found}, and this gateway knows format ${STORE_FORMAT}: use a gateway version that knows it, or configure another store.schema, but then the keys of those records can be paid again`,
    );
}

/** By `require`: an `import` from the bundle of the command, which V8 has compiled before, prints a warning of Node. */
export function loadedPackage() {
  try {
    return createRequire(import.meta.url)('pg') as typeof Pg;
  } catch (error) {
    throw new StoreUnavailable('store.kind: postgres needs the package pg: npm install pg@8', {
      maybeWritten: false,
      cause: error,
    });
  }
}

/** How long a connection may take until it can be used, in milliseconds. */
export const limitOf = ({ timeoutMs, connectTimeoutMs }: ServerOptions): number =>
  Math.min(connectTimeoutMs, Math.max(1000, timeoutMs));

/** Uses a private member of pg, because its `end` waits for the answers to what was sent. */
function destroy(client: PgClient): void {
  (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
}

export const NOT_WRITTEN = { maybeWritten: false };

export function configOf({ url, tls }: ServerOptions): ClientConfig {
  const { hostname, port, username, password, pathname } = new URL(url);
  return {
    host: hostname.replace(/^\[|\]$/g, ''),
    port: Number(port) || 5432,
    user: decodeURIComponent(username),
    password: decodeURIComponent(password),
    database: decodeURIComponent(pathname.slice(1)),
    ssl: typeof tls === 'object' ? sslOf(tls) : (tls ?? false),
    application_name: 'oncegate',
    keepAlive: true,
  };
}

/** The options of `pg`, which checks the certificate of a host with a name for that name, whatever `servername` says. */
function sslOf({ options }: ClientTls): ClientConfig['ssl'] {
  const checkServerIdentity = (host: string, certificate: PeerCertificate) =>
    isNamed(options.servername ?? host, certificate);
  return { ...options, checkServerIdentity };
}

/**
 * Translates what `pg` throws.
 *
 * @param sent whether a command was sent that writes
 */
export function failureOf(error: unknown, schema: string, sent: boolean): StoreUnavailable {
  if (error instanceof StoreUnavailable) return error;
  const { code, where = '' } = error as { code?: string; where?: string };
  const message = messageOf(error);
  const isOfServer = typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code);
  const maybeWritten = sent && (!isOfServer || PERHAPS_WRITTEN.test(code));
  const unavailable = (text: string) =>
    new StoreUnavailable(`postgres: ${text}`, { maybeWritten, cause: error });
  if (!isOfServer) return unavailable(message);
  if (code === LOCK_NOT_AVAILABLE)
    return isRow(where)
      ? new KeyLocked()
      : unavailable(`${message}: somebody has locked a table of the schema ${schema}, or closes the store`);
  if (NOT_PREPARED.has(code))
    return unavailable(`${message}: run oncegate store prepare, which makes the schema ${schema}`);
  if (code === NO_RIGHT) return unavailable(`${message}: ${SHOWN}`);
  if (OF_ANOTHER_CLIENT.has(code))
    return unavailable(
      `${message}: the address leads to a pooler that gives each transaction another connection and does not know prepared statements. Connect to PostgreSQL itself, or use PgBouncer 1.21 or newer with max_prepared_statements`,
    );
  return unavailable(message);
}

/**
 * Says of a lock that is not free whether it is that of a row. The functions first lock the tables, by LOCK TABLE. The server's messages
 * depend on its language; the text of the statement does not.
 */
const isRow = (where: string): boolean => where.includes('.records') && !where.includes('LOCK TABLE');
