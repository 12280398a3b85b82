import { Connection, failureOf, type ServerOptions } from './connection.ts';
import { schemaSql } from './schema.ts';

/**
 * The SQL that makes a schema or replaces its functions, and gives its rights to the role that gateways connect as. For a person who
 * runs it as another role.
 */
export function preparingSql({ schema, url }: Pick<ServerOptions, 'schema' | 'url'>): string {
  const to = `TO "${decodeURIComponent(new URL(url).username).replaceAll('"', '""')}"`;
  return `${schemaSql(schema)}
-- What the role of the gateways needs. An owner of the schema has it.
GRANT USAGE ON SCHEMA ${schema} ${to};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} ${to};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA ${schema} ${to};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ${schema} ${to};
-- As a superuser, so that gateways warn of long transactions of other roles, which keep dead rows from being removed:
-- GRANT pg_read_all_stats ${to};
`;
}

/** What {@link prepare} has done: made everything, replaced the functions of another version, or nothing. */
export type Prepared = 'made' | 'replaced' | 'unchanged';

/**
 * Makes the tables and the functions of a schema, unless they are there.
 *
 * @throws {StoreUnavailable} with a message for the operator
 */
export async function prepare(options: ServerOptions): Promise<Prepared> {
  const { schema } = options;
  const unchecked = async () => {};
  const connection = await Connection.open(options, () => {}, unchecked, options.connectTimeoutMs);
  try {
    const found = await lookAt(connection, schema);
    if (found === 'prepared') return 'unchanged';
    try {
      // On a large or busy database this may take longer than the role's time limit for a statement.
      await connection.script(`SET statement_timeout = 0; ${schemaSql(schema)}`);
      return found === 'absent' ? 'made' : 'replaced';
    } catch (error) {
      await connection.script('ROLLBACK');
      // Another process may have made them meanwhile.
      if ((await lookAt(connection, schema)) === 'prepared') return 'unchanged';
      throw error;
    }
  } catch (error) {
    throw failureOf(error, schema, false);
  } finally {
    await connection.close();
  }
}

/** @throws {OtherFormat} */
async function lookAt(connection: Connection, schema: string): Promise<'absent' | 'otherwise' | 'prepared'> {
  const text = `SELECT EXISTS (SELECT FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
    WHERE nspname = $1 AND relname = 'store')`;
  const [[isThere] = [false]] = await connection.run<[boolean]>({ name: '', text }, [schema]);
  if (!isThere) return 'absent';
  return (await connection.otherFunctions(schema)) === null ? 'prepared' : 'otherwise';
}
