import type { DatabaseSync } from 'node:sqlite';
import type { Mark } from '../../copy-mark.ts';

/**
 * The tables and triggers of a copy of the records. They exist only in a database that has taken part in a copy, so no gateway
 * pays for them otherwise. Triggers act on every process that has the file open, in the transaction of the write itself.
 *
 * `writing` is 1 only within a transaction of the copy, so other processes never see it.
 */
const TABLES = `
  CREATE TABLE IF NOT EXISTS copy (id INTEGER PRIMARY KEY, mark TEXT, beat TEXT NOT NULL, writing INTEGER NOT NULL);
  CREATE TABLE IF NOT EXISTS copy_log (id INTEGER PRIMARY KEY AUTOINCREMENT, scope BLOB NOT NULL, token BLOB NOT NULL);
  INSERT OR IGNORE INTO copy (id, mark, beat, writing) VALUES (1, NULL, '', 0);
`;

const CLOSED = "SELECT RAISE(ABORT, 'the records are being moved to another store, or from one')";
const BY_OTHERS = '(SELECT writing FROM copy) = 0';

const LOGS_STARTS = `
  CREATE TRIGGER copy_logs_starts AFTER INSERT ON records
  BEGIN INSERT INTO copy_log (scope, token) VALUES (NEW.scope, NEW.token); END;
`;

/** A new record that is completed is one whose start was lost, and whose backend has executed: it is accepted. */
const REFUSES_STARTS = `
  CREATE TRIGGER copy_refuses_starts BEFORE INSERT ON records WHEN NEW.state = 'executing' AND ${BY_OTHERS}
  BEGIN ${CLOSED}; END;
  CREATE TRIGGER copy_refuses_restarts BEFORE UPDATE OF state ON records
  WHEN OLD.state = 'in_doubt' AND NEW.state = 'executing' AND ${BY_OTHERS}
  BEGIN ${CLOSED}; END;
  CREATE TRIGGER copy_refuses_resolutions BEFORE INSERT ON audit WHEN ${BY_OTHERS}
  BEGIN ${CLOSED}; END;
`;

const TRIGGERS: Record<Mark['state'], string> = {
  copying: LOGS_STARTS,
  moved: LOGS_STARTS + REFUSES_STARTS,
  receiving: REFUSES_STARTS,
  undoing: REFUSES_STARTS,
  opened: '',
};

const NAMES = [
  'copy_logs_starts',
  'copy_refuses_starts',
  'copy_refuses_restarts',
  'copy_refuses_resolutions',
];

/** SQLITE_CONSTRAINT_TRIGGER */
const REFUSED_BY_TRIGGER = 1811;

/** Did one of these triggers refuse the statement? Then SQLite has undone it, and its transaction goes on. */
export const isRefusedByTrigger = (error: unknown): boolean =>
  (error as { errcode?: number }).errcode === REFUSED_BY_TRIGGER;

/** Call within a write transaction. */
export const makeCopyTables = (database: DatabaseSync): void => database.exec(TABLES);

/** The mark as `encodeMark` wrote it. Undefined: there is none. */
export function readMarkText(database: DatabaseSync): string | undefined {
  if (!database.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'copy'").get()) return undefined;
  const row = database.prepare('SELECT mark FROM copy').get() as { mark: string | null } | undefined;
  return row?.mark ?? undefined;
}

/** Sets the mark, and makes the triggers that enforce it. Call within a write transaction. */
export function setMark(database: DatabaseSync, text: string | null, state: Mark['state'] | undefined): void {
  for (const name of NAMES) database.exec(`DROP TRIGGER IF EXISTS ${name}`);
  database.exec(state ? TRIGGERS[state] : '');
  database.prepare('UPDATE copy SET mark = ?').run(text);
}
