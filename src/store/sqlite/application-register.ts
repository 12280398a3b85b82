import { DatabaseSync } from 'node:sqlite';
import type { RecordId } from '../../lib/brands.ts';
import { messageOf } from '../../lib/files.ts';
import type { Create, Replace, Reply } from '../register.ts';
import { StoreUnavailable } from '../types.ts';
import { ApplicationWriter, hasTables, tablesIn } from './application-writer.ts';
import { valuesOfWrite } from './changes.ts';
import { type Tables, unavailable } from './database.ts';
import { bootId, lockClock } from './running-time.ts';
import { SqliteRegister } from './sqlite-register.ts';
import type { SqliteRegisterOptions } from './writer.ts';

export type ApplicationDatabase = DatabaseSync;

/**
 * A store in the database of an application, on the application's own connection, so that its transactions can contain the records of
 * its keys. Its tables begin with `oncegate_`.
 */
export class ApplicationRegister extends SqliteRegister {
  readonly #writer: ApplicationWriter;

  /**
   * Opens the database of an application, the file `path`, on a connection of its own. Refuses a file without the tables.
   *
   * @throws {StoreUnavailable} with a message for the operator
   */
  static async openFile({ path, ...options }: SqliteRegisterOptions): Promise<ApplicationRegister> {
    const database = new DatabaseSync(path, { open: false, timeout: options.timeoutMs });
    return await ApplicationRegister.openIn(database, options, path);
  }

  /**
   * @param ownFile the file, if the connection is the register's own. Default: the connection is the application's
   * @throws {StoreUnavailable} with a message for the operator
   */
  static async openIn(
    database: DatabaseSync,
    options: Omit<SqliteRegisterOptions, 'path'>,
    ownFile?: string,
  ): Promise<ApplicationRegister> {
    const isOwn = ownFile !== undefined;
    let lock: DatabaseSync | undefined;
    try {
      if (!(database instanceof DatabaseSync)) throw new Error('it is no DatabaseSync of node:sqlite');
      if (isOwn) database.open();
      const file = database.location();
      if (file === null) throw new Error('it is no file, so its records would be gone after a restart');
      // Before the lock, which would leave a file beside it.
      if (isOwn && !hasTables(database))
        throw new Error('no application keeps its keys there: it has no table oncegate_store');
      const boot = bootId(options.bootIdFile);
      lock = lockClock(file, boot);
      const writer = await ApplicationWriter.open(database, { ...options, file, boot });
      return new ApplicationRegister(options, file, tablesIn(database, isOwn), writer, lock);
    } catch (error) {
      lock?.close();
      if (isOwn && database.isOpen) database.close();
      const name = ownFile ?? 'the database of the application';
      throw new StoreUnavailable(`${name} cannot be used: ${messageOf(error)}`, {
        cause: error,
        maybeWritten: false,
      });
    }
  }

  private constructor(
    options: Omit<SqliteRegisterOptions, 'path'>,
    file: string,
    tables: Tables,
    writer: ApplicationWriter,
    lock: DatabaseSync,
  ) {
    super(options, file, tables, writer, lock);
    this.#writer = writer;
  }

  /** See {@link Register.commit}. */
  async commit(
    id: RecordId,
    claim: Create,
    work: (database: unknown) => Replace | undefined,
  ): Promise<Reply> {
    const { refusing } = this;
    if (refusing) throw unavailable(refusing);
    const values = (write: Create | Replace) => valuesOfWrite(id, write, this.runningMs);
    const isDone = await this.#writer.commit(
      () => values(claim),
      (database) => {
        const write = work(database);
        return write && values(write);
      },
    );
    return isDone ? { done: true } : { done: false, held: await this.read(id) };
  }
}
