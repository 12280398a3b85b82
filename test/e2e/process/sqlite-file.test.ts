import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { withdraw } from '../../support/client.ts';
import { parsedConfig } from '../../support/config.ts';
import { configFor, isReplay, openSandbox, startGateway } from './gateways.ts';

/** Reads the file with Node's own SQLite in another process, if the sqlite3 shell is not installed. */
const SHELL = `
  const { DatabaseSync } = require('node:sqlite');
  const database = new DatabaseSync(process.argv[1], { readOnly: true });
  console.log(JSON.stringify(database.prepare(process.argv[2]).all()));`;

async function rowsOf(file: string, sql: string): Promise<Record<string, unknown>[]> {
  const exec = promisify(execFile);
  const { stdout } = await exec('sqlite3', ['-readonly', '-json', file, sql]).catch(
    (error: { code?: string }) => {
      if (error.code !== 'ENOENT') throw error;
      return exec(process.execPath, ['-e', SHELL, file, sql]);
    },
  );
  return JSON.parse(stdout || '[]');
}

it('a gateway that is killed between two withdraws pays once, and sqlite3 shows the record in readable columns', async () => {
  const sandbox = await openSandbox();
  const config = configFor(sandbox);
  const { store } = parsedConfig(config);
  const file = join(store.kind === 'sqlite' ? store.path : '', 'records.db');
  const [key, lost] = [randomUUID(), randomUUID()];

  const first = await startGateway(config);
  const paid = await withdraw(first.url, { key });
  expect(paid.status).toBe(201);
  expect((await withdraw(first.url, { key: lost, fault: 'execute-then-reset' })).status).toBe(502);
  expect(await first.end('SIGKILL')).toBe('SIGKILL');

  const second = await startGateway(config);
  for (const _ of ['once', 'twice']) {
    const again = await withdraw(second.url, { key });
    expect([again.status, isReplay(again), again.body]).toEqual([201, true, paid.body]);
  }
  expect(sandbox.ledger.payouts({ key })).toBe(1);
  expect(sandbox.requests.ofKey(key)).toBe(1);

  const columns = 'lower(hex(scope)) AS scope, merchant, operation, idempotency_key AS "key", state, status';
  const now = Date.now();
  const [record] = await rowsOf(
    file,
    `SELECT ${columns}, created_at_ms, CAST(body AS TEXT) AS body FROM records WHERE state = 'completed'`,
  );
  expect(record).toMatchObject({
    ...{ scope: scopeOf('M-ALPHA', key), merchant: 'M-ALPHA', operation: 'withdraw', key },
    ...{ state: 'completed', status: 201, body: paid.body.toString() },
  });
  expect(now - Number(record?.created_at_ms)).toBeLessThan(60_000);
  const doubtful = await rowsOf(
    file,
    "SELECT merchant, idempotency_key AS key FROM records WHERE state = 'in_doubt'",
  );
  expect(doubtful).toEqual([{ merchant: 'M-ALPHA', key: lost }]);

  // The gateway still works after another process has read its file.
  expect((await withdraw(second.url, { key: randomUUID() })).status).toBe(201);
  expect(await second.end()).toBe(0);
});
