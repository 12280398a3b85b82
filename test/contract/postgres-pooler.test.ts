import { spawn } from 'node:child_process';
import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/store/types.ts';
import { temporaryFolder } from '../support/config.ts';
import { freePort } from '../support/free-port.ts';
import { openStore } from '../support/open-store.ts';
import { newSchema, type PostgresServer, startPostgres } from '../support/postgres-server.ts';
import { newRequest } from '../support/requests.ts';
import { track } from '../support/spawn.ts';
import { storeForTest } from '../support/stores.ts';
import { until } from '../support/until.ts';

/** PgBouncer in transaction mode, with fewer connections than its clients have. Debian's is 1.18, without prepared statements. */
async function startPooler({ port }: PostgresServer): Promise<string> {
  const folder = temporaryFolder();
  const own = await freePort();
  const file = join(folder, 'pgbouncer.ini');
  writeFileSync(
    file,
    `[databases]
postgres = host=127.0.0.1 port=${port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
`.replace('postgres = host', 'postgres = user=oncegate host'),
  );
  chmodSync(folder, 0o755);
  // It refuses to run as root.
  const as = process.getuid?.() === 0 ? ['-u', 'nobody'] : [];
  track(spawn('pgbouncer', ['-q', ...as, file], { stdio: 'ignore' }));
  return `postgres://oncegate@127.0.0.1:${own}/postgres`;
}

it('a pooler without prepared statements is named in the refusal, and no record gets into another schema', async () => {
  const server = await startPostgres({ fsync: 'off' });
  const url = await startPooler(server);
  const places = [await newSchema(server), await newSchema(server)];
  await until(() =>
    openStore({ ...places[0], url } as (typeof places)[0]).then(
      (store) => store.close().then(() => true),
      () => false,
    ),
  );
  const failures: StoreUnavailable[] = [];
  await Promise.all(
    places.map(async (place, which) => {
      const store = await storeForTest({ ...place, url }, { timeoutMs: 2000 });
      for (let round = 0; round < 20; round++)
        await Promise.all(
          Array.from({ length: 20 }, () =>
            store.start(newRequest({ merchant: `M-${which}` })).catch((error) => failures.push(error)),
          ),
        );
    }),
  );
  for (const [which, { schema }] of places.entries()) {
    const { rows } = await server.admin.query(`SELECT DISTINCT merchant FROM ${schema}.records`);
    expect(rows).toEqual([{ merchant: `M-${which}` }]);
  }
  expect(failures.length).toBeGreaterThan(0);
  for (const failure of failures) {
    expect(failure).toBeInstanceOf(StoreUnavailable);
    expect(failure.message).toContain('use PgBouncer 1.21 or newer with max_prepared_statements');
  }
});
