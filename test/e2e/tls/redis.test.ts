import { randomUUID } from 'node:crypto';
import tls from 'node:tls';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { openCopyRegister } from '../../../src/ledger/open-store.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import { Authority, replaceFiles } from '../../support/certificates.ts';
import { withdraw } from '../../support/client.ts';
import { type ConfigInput, parsedConfig } from '../../support/config.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { openStack, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const authority = new Authority();
const server = authority.issue();
const client = authority.issue();
const ours = { ca: authority.ca, ...client };

const serverTls = {
  'tls-cert-file': server.cert,
  'tls-key-file': server.key,
  'tls-ca-cert-file': authority.ca,
};

/** A Redis that also speaks TLS, and then asks for a certificate. The plain port is for the test. */
async function startTlsRedis(more: Record<string, string> = {}) {
  const redis = await startRedis({ tls: { ...serverTls, ...more } });
  return { redis, url: `rediss://127.0.0.1:${redis.tlsPort}` };
}

type RedisStore = Extract<ConfigInput['store'], { kind: 'redis' }>;

/** One payout whose backend resets the connection after it has paid, and its retry. */
async function paysOnce(store: Omit<RedisStore, 'kind'>, lock: ConfigInput['lock'] = {}): Promise<void> {
  const stack = await stackForTest({ store: { kind: 'redis', ...store }, lock });
  const key = randomUUID();
  expect((await withdraw(stack.url, { key, fault: 'execute-then-reset' })).status).toBe(502);
  expect((await withdraw(stack.url, { key })).status).toBe(409);
  const paid = randomUUID();
  expect((await withdraw(stack.url, { key: paid })).status).toBe(201);
  expect((await withdraw(stack.url, { key: paid })).headers['idempotent-replayed']).toBe('true');
  expect(stack.sandbox.ledger.transactions()).toHaveLength(2);
}

const refused = (store: Omit<RedisStore, 'kind'>) =>
  expect(openStack({ store: { kind: 'redis', connectTimeoutMs: 700, ...store } })).rejects.toThrow(
    /redis cannot be reached/,
  );

/** Every TLS connection that the process opens from now on, until the test ends. */
function recordOpened(): tls.TLSSocket[] {
  const opened: tls.TLSSocket[] = [];
  const { connect } = tls;
  tls.connect = ((...args: Parameters<typeof connect>) => {
    const socket = connect(...args);
    opened.push(socket);
    return socket;
  }) as typeof connect;
  onTestFinished(() => {
    tls.connect = connect;
  });
  return opened;
}

/** ioredis listens to the first error only. Without a listener the next one would be thrown, and end a gateway. */
function failThrice(socket: tls.TLSSocket): void {
  for (let errors = 0; errors < 3; errors++) socket.emit('error', new Error('late'));
}

describe('a Redis that speaks TLS and asks for a certificate', () => {
  let redis: RedisServer;
  let url: string;
  beforeAll(async () => {
    ({ redis, url } = await startTlsRedis());
  });

  test('is the store', async () => {
    await paysOnce({ url, tls: ours });
    expect((await redis.admin.keys('oncegate:*')).length).toBeGreaterThan(0);
  });

  test('can be the source and the destination of a copy', async () => {
    const config = parsedConfig({
      upstream: { url: 'http://127.0.0.1:1' },
      store: { kind: 'redis', url, tls: ours, prefix: randomUUID() },
    } as ConfigInput);
    const side = await openCopyRegister(config, systemClock);
    onTestFinished(() => side.close());
    expect(await side.readCopyProgress()).toBeUndefined();
  });

  test('is refused if its certificate is from another authority or has another name', async () => {
    await Promise.all([
      refused({ url, tls: { ...client, ca: new Authority().ca } }),
      refused({ url }),
      refused({ url, tls: { ...ours, serverName: 'redis.internal' } }),
      // Redis itself refuses a gateway that shows no certificate.
      refused({ url, tls: { ca: authority.ca } }),
    ]);
  });

  test('holds the leases as a lock node', async () => {
    const stack = await stackForTest({
      store: { kind: 'redis', url, tls: ours },
      // The first renewal takes the lease, after a third of it.
      lock: { nodes: [url], leaseMs: 1500 },
    });
    const key = randomUUID();
    const answer = withdraw(stack.url, { key, fault: 'delay=60000' });
    const lease = () => redis.admin.keys('*lease*');
    await until(async () => (await lease()).length > 0);
    stack.sandbox.endDelays(key);
    expect((await answer).status).toBe(201);
  });

  test('names the master as a sentinel, is reached over TLS, and no error behind another one ends the process', async () => {
    const sentinel = await startRedis({
      tls: { ...serverTls, 'tls-replication': 'yes' },
      sentinel: [`sentinel monitor payments 127.0.0.1 ${redis.tlsPort} 1`],
    });
    const sentinels = { name: 'payments', nodes: [`rediss://127.0.0.1:${sentinel.tlsPort}`] };
    const opened = recordOpened();
    await paysOnce({ sentinels, tls: ours });
    expect(opened.length).toBeGreaterThanOrEqual(2);
    expect(opened.map(({ remotePort }) => remotePort)).toContain(redis.tlsPort);
    for (const socket of opened) failThrice(socket);
    // In plain text, the master's TLS port answers nothing.
    await refused({ sentinels, tls: false });
  });

  test('uses a new certificate of the gateway after a reconnect', async () => {
    const files = authority.issue();
    replaceFiles(files, new Authority().issue());
    const before = { ...ours, ...files };
    await refused({ url, tls: before });
    replaceFiles(files, client);
    const stack = await stackForTest({ store: { kind: 'redis', url, tls: before } });
    replaceFiles(files, authority.issue());
    await until(async () =>
      /certificate_reloads_total\{certificate="store",result="ok"\} [1-9]/.test(
        await stack.gateway.metrics.text(),
      ),
    );
    await redis.admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await until(async () => (await withdraw(stack.url, { key: randomUUID() })).status === 201);
  });
});

test('a cluster over TLS is the store, and an error that follows another one ends no process', async () => {
  const { redis, url } = await startTlsRedis({
    'cluster-enabled': 'yes',
    'tls-cluster': 'yes',
    'cluster-announce-ip': '127.0.0.1',
  });
  await redis.admin.call('CLUSTER', 'ADDSLOTSRANGE', 0, 16_383);
  await until(async () => String(await redis.admin.cluster('INFO')).includes('cluster_state:ok'));
  // ioredis asks for the nodes of the slots on connections of their own, which it opens again and again.
  const opened = recordOpened();
  await paysOnce({ cluster: [url], tls: ours });
  await until(() => opened.some(({ destroyed }) => destroyed));
  expect(opened.some(({ destroyed }) => !destroyed)).toBe(true);
  for (const socket of opened) failThrice(socket);
});
