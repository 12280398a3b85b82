import { schemaSql } from '../../src/store/postgres/schema.ts';
import { atEndOfFile } from './at-end-of-file.ts';
import type { PostgresPlace } from './open-store.ts';
import { launchPostgres, launchStandby, type PostgresServer } from './postgres-process.ts';

export type { PostgresServer } from './postgres-process.ts';

const running = new Set<PostgresServer>();
atEndOfFile(async () => {
  await Promise.all([...running].map((server) => server.stop()));
  running.clear();
});

/** A real PostgreSQL on a free loopback port with its own folder; stopped after the test file. */
export async function startPostgres(...how: Parameters<typeof launchPostgres>): Promise<PostgresServer> {
  const server = await launchPostgres(...how);
  running.add(server);
  return server;
}

/** A standby of a server, which follows it; stopped after the test file. */
export async function startStandby(
  primary: PostgresServer,
  settings: Record<string, string> = {},
): Promise<PostgresServer> {
  const standby = await launchStandby(primary, settings);
  running.add(standby);
  return standby;
}

let schemas = 0;

/** A schema without records, for one test. */
export async function newSchema({ url, admin }: PostgresServer): Promise<PostgresPlace> {
  const schema = `test_${++schemas}`;
  await admin.query(schemaSql(schema));
  return { kind: 'postgres', url, schema };
}
