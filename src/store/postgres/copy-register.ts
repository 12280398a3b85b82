import type { RecordId } from '../../lib/brands.ts';
import {
  type CopyProgress,
  type CopyRegister,
  decodeCopyProgress,
  encodeCopyProgress,
  type FoundProgress,
} from '../register.ts';
import { AUDIT_RETENTION_MS, type AuditRecord } from '../types.ts';
import type { PostgresOptions } from './health.ts';
import { PostgresRegister } from './register.ts';
import { CLOCK } from './tables.ts';

const ROWS_PER_PAGE = 1000;

/** A schema of PostgreSQL as the source or the destination of a copy. */
export class PostgresCopyRegister implements CopyRegister {
  readonly register: PostgresRegister;

  /** @throws {StoreUnavailable} */
  static async open(options: PostgresOptions): Promise<PostgresCopyRegister> {
    return new PostgresCopyRegister(await PostgresRegister.open(options));
  }

  private constructor(register: PostgresRegister) {
    this.register = register;
  }

  async readCopyProgress(): Promise<FoundProgress | undefined> {
    const text = await this.#progressText();
    return text === null ? undefined : { ...decodeCopyProgress(text), isWhole: true };
  }

  async changeCopyProgress(to: CopyProgress): Promise<boolean> {
    const { schema, lanes } = this.register;
    const [now, next] = [await this.#progressText(), encodeCopyProgress(to)];
    if (now !== next && to.epoch !== (now === null ? 0 : decodeCopyProgress(now).epoch) + 1) return false;
    // The lock waits for every write that may not have seen it. Another process may have changed it since it was read. It is written
    // again if it is there, because standbys may not have it.
    await lanes.script(`BEGIN ISOLATION LEVEL READ COMMITTED; LOCK TABLE ${schema}.records IN SHARE MODE;
      UPDATE ${schema}.copy SET progress = ${literal(next)} WHERE progress IS NOT DISTINCT FROM ${now === null ? 'NULL' : literal(now)};
      COMMIT`);
    return (await this.#progressText()) === next;
  }

  async servers(): Promise<string> {
    return String(this.register.connection);
  }

  async *scan() {
    const { schema, lanes } = this.register;
    for (const kind of ['record', 'audit'] as const) {
      const from =
        kind === 'record' ? `${schema}.records WHERE state <> 'absent' AND` : `${schema}.audit WHERE`;
      const select = `SELECT DISTINCT id FROM ${from} id > $1 ORDER BY id LIMIT ${ROWS_PER_PAGE}`;
      let page: [Buffer][];
      let after: Buffer = Buffer.of();
      do {
        page = await lanes.ask<[Buffer]>(select, [after]);
        yield page.map(([id]) => ({ id: id.toString('hex') as RecordId, kind }));
        [after] = page.at(-1) ?? [after];
      } while (page.length === ROWS_PER_PAGE);
    }
  }

  async putAudit(id: RecordId, audit: readonly AuditRecord[]): Promise<void> {
    const { schema, lanes } = this.register;
    const insert = `INSERT INTO ${schema}.audit (id, entry, expires_at)
      SELECT $1, entry, ${CLOCK} + interval '${AUDIT_RETENTION_MS} ms' FROM unnest($2::text[]) entry
      WHERE NOT EXISTS (SELECT 1 FROM ${schema}.audit WHERE id = $1)`;
    await lanes.change(insert, [Buffer.from(id, 'hex'), audit.map((entry) => JSON.stringify(entry))]);
  }

  close(): Promise<void> {
    return this.register.close();
  }

  async #progressText(): Promise<string | null> {
    const { schema, lanes } = this.register;
    const [[text] = [null]] = await lanes.ask<[string | null]>(`SELECT progress FROM ${schema}.copy`);
    return text;
  }
}

const literal = (text: string): string => `'${text.replaceAll("'", "''")}'`;
