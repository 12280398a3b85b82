import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, it } from 'vitest';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../support/client.ts';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { spawnGateway } from '../../support/spawn.ts';

const TOKEN = 'the admin token of this test';
const headers = { Authorization: `Bearer ${TOKEN}` };

it('a record whose times no calendar has hides no other one, and ends no worker', async () => {
  const sandbox = await createSandbox({ port: 0 });
  const folder = temporaryFolder();
  const config = testConfig(folder, sandbox.url, { admin: { port: 0, token: TOKEN }, workers: 2 });
  const gateway = await spawnGateway(config);
  const [damaged, expiresLate] = [randomUUID(), randomUUID()];
  for (const key of [damaged, expiresLate])
    expect((await withdraw(gateway.url, { key, fault: 'execute-then-reset' })).status).toBe(502);
  const { path = '' } = config.store as { path?: string };
  const file = new DatabaseSync(join(path, 'records.db'), { timeout: 10_000 });
  file.exec('PRAGMA ignore_check_constraints = ON');
  const change = (column: string, key: string) =>
    file.prepare(`UPDATE records SET ${column} = 8700000000000000 WHERE idempotency_key = ?`).run(key);
  expect([change('changed_at_ms', damaged).changes, change('expires_at', expiresLate).changes]).toEqual([
    1, 1,
  ]);
  file.close();
  const list = await send(gateway.adminUrl, { path: '/records?in_doubt=true', headers });
  const { records } = list.json<{ records: { scope: string; state: string }[] }>();
  expect(records.map(({ state }) => state).toSorted()).toEqual(['in_doubt', 'in_doubt']);
  for (const { scope } of records) {
    const shown = await send(gateway.adminUrl, { path: `/records/${scope}`, headers });
    expect(shown.status).toBe(200);
  }
  expect(gateway.lines.filter((line) => line.includes('a worker died'))).toEqual([]);
  await gateway.end();
  await sandbox.close();
});
