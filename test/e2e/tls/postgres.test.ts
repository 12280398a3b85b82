import { randomUUID } from 'node:crypto';
import { chownSync, copyFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Authority, replaceFiles } from '../../support/certificates.ts';
import { withdraw } from '../../support/client.ts';
import type { ConfigInput } from '../../support/config.ts';
import { startPostgres } from '../../support/postgres-server.ts';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const authority = new Authority();
const plain = await startPostgres();
const server = await startPostgres();
const { cert, key } = authority.issue();
for (const [name, file] of Object.entries({ cert, key, ca: authority.ca })) {
  const path = join(server.data, `${name}.pem`);
  copyFileSync(file, path);
  const { uid, gid } = statSync(server.data);
  chownSync(path, uid, gid);
}
await server.set({ ssl: 'on', ssl_cert_file: 'cert.pem', ssl_key_file: 'key.pem', ssl_ca_file: 'ca.pem' });

type PostgresStore = Extract<ConfigInput['store'], { kind: 'postgres' }>;

const withTls = (tls: PostgresStore['tls'], url = server.url): { store: PostgresStore } => ({
  store: { kind: 'postgres', url, tls, connectTimeoutMs: 2000 },
});

const encrypted = async (): Promise<unknown[]> => {
  const text = `SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'oncegate'`;
  const { rows } = await server.admin.query(text);
  return rows.map(({ ssl }) => ssl);
};

test('records go to PostgreSQL over TLS, by an address and by a name, and the gateway follows its files', async () => {
  const files = authority.issue();
  for (const url of [server.url, server.url.replace('127.0.0.1', 'localhost')]) {
    const stack = await openStack(withTls({ ca: authority.ca, ...files }, url));
    expect((await withdraw(stack.url, { key: randomUUID() })).status).toBe(201);
    expect(await encrypted()).toEqual([true]);
    replaceFiles(files, authority.issue());
    const reloaded = /certificate_reloads_total\{certificate="store",result="ok"\} [1-9]/;
    await until(async () => reloaded.test(await stack.gateway.metrics.text()));
    await stack.close();
  }
});

test('a server is refused whose certificate has another name or another authority, or that has no TLS', async () => {
  const refused = (more: ReturnType<typeof withTls>, why: RegExp) =>
    expect(openStack(more)).rejects.toThrow(why);
  const { ca } = authority;
  const byName = server.url.replace('127.0.0.1', 'localhost');
  await refused(withTls({ ca: new Authority().ca }), /certificate/);
  await refused(withTls(true), /certificate/);
  // pg itself would check the host.
  await refused(withTls({ ca, serverName: 'payments.internal' }, byName), /payments\.internal/);
  await refused(withTls({ ca }, plain.url), /does not support SSL/);
});
