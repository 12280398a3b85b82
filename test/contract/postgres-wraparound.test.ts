import { chownSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { startPostgres } from '../support/postgres-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeForTest } from '../support/stores.ts';
import { replayOf } from './states.ts';

/** Some 27 million before the server assigns no more of them. It warns at 40 million. */
const NEXT_TRANSACTION = 2_120_000_000;
/** A file of pg_xact has two bits for each transaction. */
const TRANSACTIONS_PER_FILE = 2 ** 20;

it('a server that warns in each transaction that it must be vacuumed takes payouts until it refuses them itself', async () => {
  const server = await startPostgres({ fsync: 'off', autovacuum: 'off' });
  await server.run('pg_ctl', 'stop', '-D', server.data, '-m', 'fast');
  await server.kill();
  await server.run('pg_resetwal', '-x', String(NEXT_TRANSACTION), server.data);
  const part = Math.floor(NEXT_TRANSACTION / TRANSACTIONS_PER_FILE);
  const file = join(server.data, 'pg_xact', part.toString(16).toUpperCase().padStart(4, '0'));
  writeFileSync(file, Buffer.alloc(TRANSACTIONS_PER_FILE / 4));
  const { uid, gid } = statSync(server.data);
  chownSync(file, uid, gid);
  // So close to the limit, the server vacuums even without autovacuum, and then warns no more. With -b, the mode of pg_upgrade, it does not.
  await server.start('-b');

  const warned: string[] = [];
  const client = await server.admin.connect();
  client.on('notice', ({ message }) => warned.push(String(message)));
  await client.query('SELECT pg_current_xact_id()');
  client.release();
  expect(warned).toEqual([expect.stringContaining('must be vacuumed within')]);

  const store = await storeForTest({ kind: 'postgres', url: server.url, schema: 'oncegate' });
  const owner = newRequest();
  expect(await store.start(owner)).toEqual({ kind: 'started' });
  expect(await store.complete(owner, paid())).toBe('ok');
  expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
  expect(await store.health()).toMatchObject({ ok: true });
});
