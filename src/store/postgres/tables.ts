import { STORE_FORMAT } from '../types.ts';

/** The time of the server's clock. Not now(), which is when the transaction began, before it waited for a row. */
export const CLOCK = 'clock_timestamp()';

/** For how many milliseconds a row is still there. An expiry that a person has set to infinity cannot be subtracted from before PostgreSQL 17. */
export const leftMs = (expiresAt: string, now = CLOCK): string =>
  `((extract(epoch FROM ${expiresAt}) - extract(epoch FROM ${now})) * 1000)::float8`;

/** A row holds a record that is there, in a statement on `records`. */
export const IS_LIVE = `(state <> 'absent' AND expires_at > ${CLOCK})`;

/** The id of the row that holds the identity of the store in `idempotency_key`, and the count of its visits in `cause`. */
export const IDENTITY = "'\\x'::bytea";

/** Names the server process and the tables that a connection leads to. */
export const serverOf = (schema: string): string =>
  `concat_ws(' ', current_database(), (extract(epoch FROM pg_postmaster_start_time()) * 1e6)::bigint, to_regclass('${schema}.store')::oid)`;
/** The SQLSTATE of a write that was meant for another server, or for tables that were made again since. Nothing is written. */
export const OTHER_SERVER = 'OG001';

/**
 * Makes the tables of a store, unless they are there.
 *
 * `records.record` is the record as in Redis (codec.ts). The columns before it repeat a part of it for people, who read them with psql
 * (`select … from oncegate.records where state = 'in_doubt'`). A row in the state `absent` has no record, only void tokens: in a table of
 * their own, a start that had begun before its token was voided could still commit after that, because a statement does not see what
 * was committed since it began. A lock on the row is always decided on its latest version.
 *
 * One row is no record: its id is empty, and it holds the store's identity and the count of its visits. So whoever empties the table, or puts
 * an older one in its place, takes them along.
 *
 * `due` is when a row may be removed. A row is in one of two indexes, because each entry that a payout writes costs time.
 *
 * @param schema the schema that holds them, an identifier without quotes
 */
export const tablesSql = (schema: string): string => `
DO $tables$ BEGIN
-- CREATE SCHEMA IF NOT EXISTS needs the right to create one even if it is there.
IF to_regnamespace('${schema}') IS NULL THEN CREATE SCHEMA ${schema}; END IF;
IF to_regclass('${schema}.store') IS NULL THEN

CREATE TABLE ${schema}.records (
  id bytea PRIMARY KEY,
  state text NOT NULL,
  merchant text,
  operation text,
  idempotency_key text,
  cause text,
  created_at timestamptz,
  expires_at timestamptz NOT NULL DEFAULT '-infinity',
  due timestamptz NOT NULL DEFAULT '-infinity',
  lease_token bytea,
  leased_until timestamptz,
  void_tokens bytea[],
  void_until timestamptz[],
  revision bytea,
  record bytea NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);
-- The head of a large record is read without its body.
ALTER TABLE ${schema}.records ALTER COLUMN record SET STORAGE EXTERNAL;
CREATE INDEX records_open ON ${schema}.records (due, id) WHERE state <> 'completed';
CREATE INDEX records_completed ON ${schema}.records (due) WHERE state = 'completed';

CREATE TABLE ${schema}.audit (
  number bigserial PRIMARY KEY,
  id bytea NOT NULL,
  entry text NOT NULL,
  expires_at timestamptz NOT NULL
);
CREATE INDEX audit_id ON ${schema}.audit (id);
CREATE INDEX audit_expiry ON ${schema}.audit (expires_at);

CREATE TABLE ${schema}.resolutions (kind text PRIMARY KEY, number bigint NOT NULL);

CREATE TABLE ${schema}.store (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  format int NOT NULL,
  -- Of the last visit.
  timeline text,
  waits boolean NOT NULL DEFAULT true,
  protect_until timestamptz NOT NULL DEFAULT '-infinity',
  observe_until timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO ${schema}.store (format) VALUES (${STORE_FORMAT});

-- Changed only when a copy closes or opens the store. Not in the table above, which each gateway writes once a minute: a transaction of
-- an application locks this row. And not the table of records, which autovacuum locks for as long as it works on it.
CREATE TABLE ${schema}.copy (one boolean PRIMARY KEY DEFAULT true CHECK (one), progress text);
INSERT INTO ${schema}.copy DEFAULT VALUES;
ELSIF (SELECT format FROM ${schema}.store) <> ${STORE_FORMAT} THEN
  RAISE EXCEPTION 'the schema ${schema} has records of another format' USING ERRCODE = 'invalid_schema_definition';
END IF;
END $tables$;
`;
