import { hash } from 'node:crypto';
import { AUDIT_RETENTION_MS } from '../doubts.ts';
import { STORE_FORMAT, VOID_TOKEN_MS } from '../types.ts';
import { CLOCK, IS_LIVE, leftMs, OTHER_SERVER, serverOf } from './tables.ts';

/** A write that waits longer for the row of its key is refused: another transaction is writing it. */
const LOCK_TIMEOUT_MS = 50;

/** The rest of the transaction is as durable as a record must be. */
const DURABLY = `IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  -- A wait for a standby that was cancelled is only a warning.
  IF current_setting('client_min_messages') IN ('error', 'fatal', 'panic') THEN
    PERFORM set_config('client_min_messages', 'warning', true);
  END IF;`;

/** The members of a command in a batch, in SQL. */
const COMMAND = `n int, kind text, id bytea, expected bytea, revision bytea, token bytea, record bytea, state text, merchant text,
      operation text, idempotency_key text, cause text, created_at_ms float8, lives_ms float8, unless_leased boolean,
      unless_closed boolean, ends bytea, voids bytea, audit text, counted text, server text`;

/**
 * Makes the functions of a store, which decide about its records, or replaces those of another version. A call that runs goes on as it
 * began, and each later one is new. What they promise each other, such as the lock of a close, is part of the store's format.
 *
 * @param schema the schema that holds them, an identifier without quotes
 */
export function functionsSql(schema: string): string {
  /** What a gateway knows of its records, it knows of one server: another one may have forgotten them. */
  const onServer = (meant: string) => `IF ${meant} <> ${serverOf(schema)} THEN
    RAISE EXCEPTION 'the connection leads to another server than the store, or to other tables' USING ERRCODE = '${OTHER_SERVER}';
  END IF;`;
  /** This transaction itself, and no savepoint in it, has written the row. */
  const IS_OWN = `EXISTS (SELECT FROM ${schema}.records WHERE id = w.id AND xmin = pg_current_xact_id()::xid)`;
  return `-- Changes when a standby is promoted, or a backup restored to a point in time. Not every service says it.
CREATE OR REPLACE FUNCTION ${schema}.timeline() RETURNS text LANGUAGE plpgsql AS $timeline$
BEGIN
  RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN OTHERS THEN
  RETURN NULL;
END $timeline$;

-- Who truncates the table loses all keys at once, and would not see how many rows that are.
CREATE OR REPLACE FUNCTION ${schema}.refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $refuse$
BEGIN
  RAISE EXCEPTION 'each key in ${schema}.records can be paid again when its record is gone' USING
    HINT = 'Stop all gateways, DELETE the records, or drop the schema and make it again (oncegate store prepare). Then no key is started until somebody runs oncegate store accept.';
END $refuse$;

-- Applies commands in one transaction, in the order of their ids, so that two batches never wait for each other.
--
-- kind: create (nothing -> record), replace (the revision expected, or nothing -> record, or nothing), read, renew (the lease), end
-- (the lease). The answer is done, refused (then held is the record that is there), void, closed; or kept, taken, lost of renew.
CREATE OR REPLACE FUNCTION ${schema}.write(
  batch json, server text DEFAULT NULL, OUT n int, OUT answer text, OUT held bytea, OUT lives_ms float8, OUT is_leased boolean
) RETURNS SETOF record LANGUAGE plpgsql SET lock_timeout = '${LOCK_TIMEOUT_MS}ms' AS $write$
#variable_conflict use_column
DECLARE
  w record;
  r ${schema}.records;
  now timestamptz;
  closed text;
  wrote boolean := false;
  must_last boolean := false;
  changed boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'the isolation level must be read committed' USING ERRCODE = 'invalid_transaction_state';
  END IF;
  ${onServer('server')}
  ${DURABLY}
  -- What closes the store waits for the lock of \`copy\`, so every later write sees that it is closed. A
  -- statement that waits for a lock after this waits for a row.
  LOCK TABLE ${schema}.copy, ${schema}.store, ${schema}.records IN ROW EXCLUSIVE MODE;
  SELECT split_part(coalesce(progress, 'no'), ' ', 1) INTO closed
    FROM ${schema}.store, ${schema}.copy WHERE format = ${STORE_FORMAT};
  IF closed IS NULL THEN
    RAISE EXCEPTION 'the schema ${schema} has records of another format' USING ERRCODE = 'invalid_schema_definition';
  END IF;

  FOR w IN SELECT * FROM json_to_recordset(batch) AS command (${COMMAND}) ORDER BY command.id, command.n LOOP
    n := w.n;
    held := NULL;
    lives_ms := NULL;
    is_leased := NULL;
    r := NULL;

    -- The three commands that a payout and a replay need, without a lock where nothing is written.
    IF w.kind IN ('create', 'read') THEN
      SELECT * INTO r FROM ${schema}.records WHERE id = w.id AND ${IS_LIVE};
      IF NOT FOUND AND w.kind = 'create' AND closed = 'no' THEN
        INSERT INTO ${schema}.records AS t
            (id, state, merchant, operation, idempotency_key, cause, created_at, expires_at, due, revision, record)
          VALUES (w.id, w.state, w.merchant, w.operation, w.idempotency_key, w.cause, to_timestamp(w.created_at_ms / 1000),
            ${CLOCK} + w.lives_ms * interval '1 ms', ${CLOCK} + w.lives_ms * interval '1 ms', w.revision, w.record)
          ON CONFLICT (id) DO NOTHING;
        IF FOUND THEN
          wrote := true;
          answer := 'done';
          RETURN NEXT;
          CONTINUE;
        END IF;
      END IF;
      IF w.kind = 'read' OR (r.revision <> w.revision) THEN
        now := ${CLOCK};
        answer := 'refused';
        held := r.record;
        lives_ms := ${leftMs('r.expires_at', 'now')};
        is_leased := coalesce(r.leased_until > now, false);
        must_last := must_last OR r.state <> 'executing';
        RETURN NEXT;
        CONTINUE;
      END IF;
    ELSIF w.kind = 'replace' AND closed = 'no' AND w.state = 'completed' AND w.voids IS NULL AND w.audit IS NULL THEN
      UPDATE ${schema}.records SET state = w.state, cause = w.cause, revision = w.revision, record = w.record,
          expires_at = coalesce(${CLOCK} + w.lives_ms * interval '1 ms', expires_at),
          due = greatest(coalesce(${CLOCK} + w.lives_ms * interval '1 ms', expires_at), (SELECT max(u) FROM unnest(void_until) u)),
          leased_until = CASE WHEN lease_token = w.ends THEN NULL ELSE leased_until END
        WHERE id = w.id AND revision = w.expected AND ${IS_LIVE}
          AND (w.unless_leased IS NOT TRUE OR leased_until > ${CLOCK} IS NOT TRUE OR lease_token = w.ends);
      IF FOUND THEN
        wrote := true;
        answer := 'done';
        RETURN NEXT;
        CONTINUE;
      END IF;
    END IF;

    -- Everything else is decided under the lock of the row.
    changed := false;
    LOOP
      SELECT * INTO r FROM ${schema}.records WHERE id = w.id FOR UPDATE;
      EXIT WHEN FOUND OR NOT (w.voids IS NOT NULL OR (w.record IS NOT NULL AND w.expected IS NULL));
      INSERT INTO ${schema}.records (id, state) VALUES (w.id, 'absent') ON CONFLICT (id) DO NOTHING;
    END LOOP;
    now := ${CLOCK};
    IF r.state = 'absent' OR r.expires_at <= now THEN
      changed := r.state = 'absent' AND r.due <= now;
      r.state := 'absent';
      r.revision := NULL;
      r.leased_until := NULL;
    END IF;

    IF w.kind = 'renew' THEN
      answer := CASE WHEN r.leased_until > now IS NOT TRUE THEN 'taken' WHEN r.lease_token = w.token THEN 'kept' ELSE 'lost' END;
      IF answer <> 'lost' AND r.state <> 'absent' THEN
        r.lease_token := w.token;
        r.leased_until := now + w.lives_ms * interval '1 ms';
        changed := true;
      END IF;
    ELSE
      answer := CASE
        WHEN w.kind = 'end' OR r.revision = w.revision THEN 'done'
        WHEN w.unless_leased AND r.leased_until > now AND r.lease_token IS DISTINCT FROM w.ends THEN 'refused'
        WHEN w.expected IS DISTINCT FROM r.revision THEN 'refused'
        WHEN closed = 'all' OR (closed <> 'no' AND w.unless_closed) THEN 'closed'
        WHEN w.kind = 'create' AND EXISTS (
          SELECT 1 FROM unnest(r.void_tokens, r.void_until) v (token, until) WHERE v.token = w.token AND v.until > now) THEN 'void'
        ELSE 'write' END;
      must_last := must_last OR answer = 'done' OR (answer = 'refused' AND r.state <> 'executing');
      IF r.lease_token = w.ends AND r.leased_until IS NOT NULL THEN
        r.leased_until := NULL;
        changed := true;
      END IF;
      IF answer = 'refused' AND r.revision IS NOT NULL THEN
        held := r.record;
        lives_ms := ${leftMs('r.expires_at', 'now')};
        is_leased := coalesce(r.leased_until > now, false);
      END IF;
      IF answer = 'write' THEN
        answer := 'done';
        changed := true;
        IF w.record IS NULL THEN
          r.state := 'absent';
          r.revision := NULL;
          r.record := '';
          r.expires_at := '-infinity';
          r.leased_until := NULL;
        ELSE
          r.state := w.state;
          r.revision := w.revision;
          r.record := w.record;
          r.expires_at := coalesce(now + w.lives_ms * interval '1 ms', r.expires_at);
          r.cause := w.cause;
        END IF;
        r.merchant := w.merchant;
        r.operation := w.operation;
        r.idempotency_key := w.idempotency_key;
        r.created_at := to_timestamp(w.created_at_ms / 1000);
        IF w.audit IS NOT NULL THEN
          INSERT INTO ${schema}.audit (id, entry, expires_at)
            VALUES (w.id, w.audit, now + interval '${AUDIT_RETENTION_MS} ms');
        END IF;
        IF w.counted IS NOT NULL THEN
          INSERT INTO ${schema}.resolutions AS t VALUES (w.counted, 1)
            ON CONFLICT (kind) DO UPDATE SET number = t.number + 1;
        END IF;
      END IF;
      IF w.voids IS NOT NULL THEN
        SELECT array_agg(v.token) || w.voids, array_agg(v.until) || (now + interval '${VOID_TOKEN_MS} ms')
          INTO r.void_tokens, r.void_until
          FROM unnest(r.void_tokens, r.void_until) v (token, until) WHERE v.until > now AND v.token <> w.voids;
        changed := true;
      END IF;
    END IF;

    IF changed AND r.id IS NOT NULL THEN
      wrote := true;
      r.due := greatest(CASE WHEN r.state <> 'absent' THEN r.expires_at END, (SELECT max(u) FROM unnest(r.void_until) u));
      IF r.due > now THEN
        UPDATE ${schema}.records SET state = r.state, merchant = r.merchant, operation = r.operation,
            idempotency_key = r.idempotency_key, cause = r.cause, created_at = r.created_at, expires_at = r.expires_at, due = r.due,
            lease_token = r.lease_token, leased_until = r.leased_until, void_tokens = r.void_tokens, void_until = r.void_until,
            revision = r.revision, record = r.record
          WHERE id = w.id;
      ELSE
        DELETE FROM ${schema}.records WHERE id = w.id;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;

  -- What is visible may not be on the standbys yet, because its own wait for them was cancelled or cut off. A transaction that has
  -- written to the log waits for everything before it.
  IF must_last AND NOT wrote AND current_setting('synchronous_standby_names') <> '' THEN
    PERFORM pg_logical_emit_message(true, 'oncegate', '');
  END IF;
END $write$;

-- Nothing -> an executing record, in a transaction of the application. Nobody else sees it, and who creates it too waits for the end of
-- the transaction. The answer is done, refused (a record is there), closed or savepoint.
CREATE OR REPLACE FUNCTION ${schema}.claim(command text) RETURNS text LANGUAGE plpgsql SET lock_timeout = '${LOCK_TIMEOUT_MS}ms' AS $claim$
DECLARE
  w record;
  closed text;
BEGIN
  SELECT * INTO w FROM json_to_record(command::json) AS command (${COMMAND});
  ${onServer('w.server')}
  ${DURABLY}
  LOCK TABLE ${schema}.copy, ${schema}.store, ${schema}.records IN ROW EXCLUSIVE MODE;
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT split_part(coalesce(progress, 'no'), ' ', 1) INTO closed FROM ${schema}.copy;
  ELSE
    -- The snapshot of the transaction may be older than the lock. If the row has changed since, its lock is a serialization failure.
    SELECT split_part(coalesce(progress, 'no'), ' ', 1) INTO closed FROM ${schema}.copy FOR SHARE;
  END IF;
  IF closed <> 'no' THEN
    RETURN 'closed';
  END IF;
  INSERT INTO ${schema}.records
      (id, state, merchant, operation, idempotency_key, cause, created_at, expires_at, due, revision, record)
    VALUES (w.id, w.state, w.merchant, w.operation, w.idempotency_key, w.cause, to_timestamp(w.created_at_ms / 1000),
      ${CLOCK} + w.lives_ms * interval '1 ms', ${CLOCK} + w.lives_ms * interval '1 ms', w.revision, w.record)
    ON CONFLICT (id) DO NOTHING;
  IF NOT FOUND THEN
    -- A row whose record has expired, or that only holds void tokens.
    UPDATE ${schema}.records SET state = w.state, merchant = w.merchant, operation = w.operation,
        idempotency_key = w.idempotency_key, cause = w.cause, created_at = to_timestamp(w.created_at_ms / 1000),
        expires_at = ${CLOCK} + w.lives_ms * interval '1 ms', due = greatest(due, ${CLOCK} + w.lives_ms * interval '1 ms'),
        lease_token = NULL, leased_until = NULL, revision = w.revision, record = w.record
      WHERE id = w.id AND NOT ${IS_LIVE};
    IF NOT FOUND THEN
      RETURN 'refused';
    END IF;
  END IF;
  RETURN CASE WHEN ${IS_OWN} THEN 'done' ELSE 'savepoint' END;
END $claim$;

-- The record of claim -> completed, in the same transaction. The answer is done, other (there is no such record, or another transaction
-- has written it) or savepoint.
CREATE OR REPLACE FUNCTION ${schema}.complete(command text) RETURNS text LANGUAGE plpgsql AS $complete$
DECLARE
  w record;
BEGIN
  ${DURABLY}
  SELECT * INTO w FROM json_to_record(command::json) AS command (${COMMAND});
  UPDATE ${schema}.records SET state = w.state, revision = w.revision, record = w.record,
      expires_at = ${CLOCK} + w.lives_ms * interval '1 ms',
      due = greatest(${CLOCK} + w.lives_ms * interval '1 ms', (SELECT max(u) FROM unnest(void_until) u))
    WHERE id = w.id AND revision = w.expected AND xmin = pg_current_xact_id()::xid;
  RETURN CASE WHEN NOT FOUND THEN 'other' WHEN ${IS_OWN} THEN 'done' ELSE 'savepoint' END;
END $complete$;
`;
}

/** The name of each function, and the digest of its body and its settings: see {@link otherFunctions}. */
export function functionsOf(schema: string): Map<string, string> {
  const [, ...made] = functionsSql(schema).split('CREATE OR REPLACE FUNCTION ');
  return new Map(
    made.map((sql) => {
      const [head = '', body = ''] = sql.split(/\$\w+\$/);
      const name = /^\w+\.(\w+)/.exec(head)?.[1] as string;
      const setting = / SET (\w+) = '(\w+)' AS $/.exec(head);
      return [name, hash('sha256', body + (setting ? `{${setting[1]}=${setting[2]}}` : ''), 'hex')];
    }),
  );
}

/** The names of the functions that are missing or those of another version: $1 has the names, and $2 the digests. */
export const otherFunctions = (schema: string): string =>
  `SELECT string_agg(name, ', ' ORDER BY name) FROM unnest($1::text[], $2::text[]) needed (name, digest)
    WHERE NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = '${schema}'::regnamespace AND proname = name
      AND encode(sha256(convert_to(concat(prosrc, proconfig), 'UTF8')), 'hex') = digest)`;
