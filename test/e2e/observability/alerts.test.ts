import { randomBytes, randomUUID } from 'node:crypto';
import { renameSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it, onTestFinished } from 'vitest';
import { stringify } from 'yaml';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import { leaseOf, Names } from '../../../src/store/redis/commands.ts';
import { Authority } from '../../support/certificates.ts';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { keyFileIn, type MoreConfig, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { metric } from '../../support/metrics.ts';
import { openStore } from '../../support/open-store.ts';
import { payoutBody } from '../../support/payout.ts';
import { type Prometheus, startPrometheus } from '../../support/prometheus.ts';
import { rawConnection } from '../../support/raw.ts';
import { startRedis } from '../../support/redis-server.ts';
import { newRequest } from '../../support/requests.ts';
import { gatewayForTest, openGateway, stackForTest } from '../../support/stack.ts';
import { startHere } from '../../support/started.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';
import { LOOKUP_TOKEN, lookingUp } from '../idempotency/policies.ts';
import { configFor, openSandbox, startGateway } from '../process/gateways.ts';
import { annotationLabels, readText, rules } from './support/artifacts.ts';

const HOUR_MS = 3_600_000;
const HELD = 'delay=300000';
const PATIENT = { responseTimeoutMs: 300_000 };

/** Limits that a test cannot reach, or not soon. promtool.test.ts has the real ones, and when the alerts end. */
const SOONER: [limit: string, sooner: string][] = [
  ['(oncegate_doubts_counted_timestamp_seconds) > 300', '(oncegate_doubts_counted_timestamp_seconds) > 3'],
  ['(oncegate_store_disk_free_bytes) < 1073741824', '(oncegate_store_disk_free_bytes) < 1e15'],
  ['(oncegate_store_disk_free_bytes) < 268435456', '(oncegate_store_disk_free_bytes) < 1e15'],
  ['(oncegate_sqlite_wal_bytes) > 268435456', '(oncegate_sqlite_wal_bytes) > 4096'],
  [':p95_rate5m > 5', ':p95_rate5m > 0.2'],
];

/** The rules of the product, which do not wait before they fire. */
function rulesNow(): string {
  let text = readText('config/prometheus.rules.yaml').replace(/^( +for:) \w+$/gm, '$1 1s');
  for (const [limit, sooner] of SOONER) {
    expect(text).toContain(limit);
    text = text.replace(limit, sooner);
  }
  return text;
}

/** Begins `action` every `everyMs`, without waiting for it, until the test ends. Failures of the action do not matter. */
function keepOn(everyMs: number, action: (times: number) => Promise<unknown>): void {
  const running = new Set<Promise<unknown>>();
  let times = 0;
  const timer = setInterval(() => {
    const one = action(times++)
      .catch(() => {})
      .finally(() => running.delete(one));
    running.add(one);
  }, everyMs);
  onTestFinished(async () => {
    clearInterval(timer);
    await Promise.all(running);
  });
}

const open = (more: MoreConfig, sandboxOptions = {}) => stackForTest(more, sandboxOptions);

/** A gateway, or what looks like one, and what goes wrong there as soon as Prometheus watches it. */
interface Provocation {
  adminUrls: string[];
  alerts: string[];
  begin(): Promise<unknown>;
}

/** A key stays in doubt, and then the backend and the collector of traces are away. */
async function awayFromEverything(): Promise<Provocation> {
  const endpoint = `http://127.0.0.1:${await freePort()}`;
  const { idempotency, ...lookups } = lookingUp({ releaseAfterMs: 60_000 });
  const stack = await open(
    {
      ...lookups,
      idempotency: { ...idempotency, countDoubtsEveryMs: 300, inDoubtPageAfterMs: 2000 },
      tracing: { endpoint, ratio: 1, sendEveryMs: 100, timeoutMs: 100 },
    },
    { lookupToken: LOOKUP_TOKEN },
  );
  return {
    adminUrls: [stack.adminUrl, `http://127.0.0.1:${await freePort()}`],
    alerts: [
      ...['GatewayDown', 'UpstreamUnreachable', 'LookupsFail', 'InDoubt', 'InDoubtOld', 'SpansLost'],
      ...['DiskSpaceLow', 'DiskAlmostFull', 'WalGrows'],
    ],
    async begin() {
      const key = randomUUID();
      const lost = withdraw(stack.url, { key, fault: 'execute-then-hang' });
      await until(() => stack.sandbox.requests.ofKey(key) > 0);
      await stack.sandbox.close();
      expect((await lost).status).toBe(502);
      keepOn(100, () => withdraw(stack.url, { key: randomUUID() }));
    },
  };
}

/** One connection to a slow backend, and more payouts than go through it. */
async function slotsAreFull(): Promise<Provocation> {
  const { url, adminUrl } = await open({
    upstream: { maxConnections: 1, maxQueued: 2, queueTimeoutMs: 300 },
  });
  return {
    adminUrls: [adminUrl],
    alerts: [
      ...['Overloaded', 'SlotsFull', 'UpstreamSlow', 'UnprotectedPayouts'],
      ...['LatencyBurnsFast', 'LatencyBurnsSlowly', 'AvailabilityBurnsFast', 'AvailabilityBurnsSlowly'],
    ],
    async begin() {
      keepOn(100, () => withdraw(url, { key: randomUUID(), fault: 'delay=400' }));
      keepOn(1000, () => withdraw(url));
    },
  };
}

/** More requests at once, and more connections, than the gateway takes. */
async function tooManyAtOnce(): Promise<Provocation> {
  const limits = { inFlight: 2, connections: 8, headerTimeoutMs: 300_000, bodyTimeoutMs: 300_000 };
  const { url, port, adminUrl } = await open({ limits });
  const head = [
    ...['POST /v1/index.php HTTP/1.1', 'Host: a', 'Authorization: Bearer sk_sandbox_alpha'],
    ...['Content-Length: 100', '', ''],
  ].join('\r\n');
  return {
    adminUrls: [adminUrl],
    alerts: ['InFlightFull', 'ConnectionsRefused'],
    async begin() {
      const held = await Promise.all([rawConnection(port), rawConnection(port)]);
      for (const socket of held) socket.write(head);
      onTestFinished(() => held.forEach((socket) => void socket.destroy()));
      keepOn(100, () => send(url, { path: '/v2/get_balance' }));
      keepOn(1000, async () => {
        const sockets = Array.from({ length: 10 }, () => connect(port, '127.0.0.1').on('error', () => {}));
        await sleep(300);
        for (const socket of sockets) socket.destroy();
      });
    },
  };
}

const replace = (path: string, text: string) => {
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
};

/** A certificate, and the secret keys of a merchant, come to their end. New versions have mistakes. */
async function keysAndCertificatesEnd(): Promise<Provocation> {
  const files = new Authority().issue({ untilMs: Date.now() + 48 * HOUR_MS });
  const stack = await open({ listen: { tls: files } });
  const keyFile = keyFileIn(stack.config);
  const expiresAt = new Date(Date.now() + HOUR_MS).toISOString();
  const last = { id: 'last', dangerouslyPlainSecret: 'sk_leaving', expiresAt };
  replace(keyFile, stringify({ merchants: [{ code: 'M-LEAVING', keys: [last] }] }));
  return {
    adminUrls: [stack.adminUrl],
    alerts: [
      ...['CertificateExpires', 'CertificateExpired', 'CertificateRefused'],
      ...['KeyExpires', 'KeyExpired', 'KeyFileRefused'],
    ],
    async begin() {
      keepOn(1000, async (times) => {
        replace(files.cert, `no certificate ${times}`);
        replace(keyFile, `merchants: ${times}`);
      });
    },
  };
}

/** A configuration with a mistake, a gateway that only observes, and one that does not have the key of encrypted records. */
async function wronglyConfigured(): Promise<Provocation> {
  const sandbox = await openSandbox();
  const config = configFor(sandbox);
  const spawned = await startGateway(config);
  onTestFinished(async () => void (await spawned.end()));
  const observer = await gatewayForTest(configFor(sandbox, { idempotency: { mode: 'observe' } }));
  const { path } = config.store as { path: string };
  const keys = [{ id: '2026', secret: randomBytes(32).toString('base64') }];
  const writer = await gatewayForTest(
    configFor(sandbox, { store: { kind: 'sqlite', path, encryption: { keys } } }),
  );
  return {
    adminUrls: [spawned.adminUrl, observer.adminUrl],
    alerts: ['ConfigRefused', 'Observing', 'UnreadableRecords'],
    async begin() {
      const key = randomUUID();
      expect((await withdraw(writer.url, { key })).status).toBe(201);
      keepOn(1000, async (times) => {
        replace(spawned.file, stringify({ ...config, limits: { inFlight: -1 - times } }));
        await withdraw(spawned.url, { key });
      });
    },
  };
}

/** A payout that the backend has, and the names of its record and its lease. */
interface Held {
  key: string;
  answer: ReturnType<typeof withdraw>;
  names: string[];
  lease: string;
}

/** A Redis that may lose what it has written, whose replica falls behind, whose clock is stepped, and which dies in the end. */
async function storeIsLost(): Promise<Provocation> {
  const redis = await startRedis({ args: ['--appendfsync', 'everysec', '--repl-diskless-sync-delay', '0'] });
  const wire = await startProxy(redis.port);
  await startRedis({ args: ['--replicaof', '127.0.0.1', `${wire.port}`] });
  // The replica counts after its first acknowledgement, which may take a second.
  await redis.admin.set('warm', '1');
  await redis.admin.wait(1, 0);
  const sandbox = await openSandbox();
  const leaseMs = 3000;
  const store = { kind: 'redis', url: redis.url, timeoutMs: 1000, durability: { replicas: 1 } } as const;
  const config = configFor(sandbox, {
    ...{ store, lock: { leaseMs }, upstream: PATIENT },
    idempotency: { countDoubtsEveryMs: 300, completeRetryMs: 100 },
  });
  // The gateway compares Redis' clock with its own, so that a shift of the second looks like a step of the first.
  let shiftMs = 0;
  const clock = { ...systemClock, monotonicMs: () => systemClock.monotonicMs() + shiftMs };
  const gateway = await openGateway(config, clock);
  onTestFinished(async () => {
    await redis.restart();
    await gateway.shutdown();
  });
  const another = await openStore({ kind: 'redis', url: redis.url, prefix: 'oncegate' }, { leaseMs });
  onTestFinished(() => another.close());
  const held = async (): Promise<Held> => {
    const key = randomUUID();
    const answer = withdraw(gateway.url, { key, fault: HELD });
    let isRefused = false;
    void answer.then(() => {
      isRefused = true;
    });
    await until(() => isRefused || sandbox.requests.ofKey(key) > 0);
    // The replica has not caught up yet, so that the store takes no start.
    if (sandbox.requests.ofKey(key) === 0) return await held();
    const name = new Names('oncegate').recordOf(recordIdOf('gateway', 'M-ALPHA', key));
    const lease = leaseOf(name);
    // The first renewal takes it.
    await until(() => redis.admin.exists(lease));
    return { key, answer, names: [name, lease], lease };
  };
  return {
    adminUrls: [gateway.adminUrl],
    alerts: [
      ...['StoreUnsafe', 'CompleteUnreplicated', 'LeaseLost', 'StaleWrites', 'StoreClockStepped'],
      ...['CompleteLate', 'WritesPending', 'StoreRefusesWrites', 'StoreFailing', 'DoubtsNotCounted'],
    ],
    async begin() {
      // As a load balancer does. The clock is compared then.
      keepOn(300, () => send(gateway.adminUrl, { path: '/readyz' }));
      const unreplicated = await held();
      wire.swallowReplication(true);
      sandbox.endDelays(unreplicated.key);
      await until(() => metric(gateway.adminUrl, 'oncegate_complete_unreplicated_total'));
      wire.swallowReplication(false);
      await unreplicated.answer;
      const lapsing = await held();
      await redis.admin.del(lapsing.lease);
      await until(() => metric(gateway.adminUrl, 'oncegate_lease_lost_total'));
      await redis.admin.del(lapsing.names);
      const body = JSON.stringify(payoutBody());
      await another.start(newRequest({ merchant: 'M-ALPHA', key: lapsing.key, body }));
      sandbox.endDelays(lapsing.key);
      await lapsing.answer;
      shiftMs += 5000;
      await until(() => metric(gateway.adminUrl, 'oncegate_store_clock_steps_total'));
      const last = await held();
      await redis.kill();
      sandbox.endDelays(last.key);
      keepOn(100, () => withdraw(gateway.url, { key: randomUUID() }));
    },
  };
}

/** A gateway whose store is not the one that the file beside its configuration names. */
async function storeHasForgotten(): Promise<Provocation> {
  const folder = newFolder();
  const noted = { format: 1, mark: { id: '0'.repeat(32), count: 1 }, seenAt: new Date().toISOString() };
  writeFileSync(join(folder, 'gateway.store-identity.json'), JSON.stringify(noted));
  const { adminUrl } = await startHere(testConfig(folder, (await openSandbox()).url), folder);
  return { adminUrls: [adminUrl], alerts: ['StoreForgot'], begin: async () => {} };
}

it('every alert fires in a real Prometheus for real gateways, and has the labels that its texts name', async () => {
  const provocations = await Promise.all([
    awayFromEverything(),
    slotsAreFull(),
    tooManyAtOnce(),
    keysAndCertificatesEnd(),
    wronglyConfigured(),
    storeIsLost(),
    storeHasForgotten(),
  ]);
  const all = provocations.flatMap(({ alerts }) => alerts.map((name) => `Oncegate${name}`));
  expect(new Set(all)).toEqual(new Set(rules.flatMap(({ alert }) => alert ?? [])));
  const targets = provocations.flatMap(({ adminUrls }) => adminUrls.map((url) => new URL(url).host));
  const prometheus: Prometheus = await startPrometheus({ targets, rules: [rulesNow()], everyMs: 1000 });
  onTestFinished(() => prometheus.stop());
  // Prometheus sees only events after its first look at a counter.
  await until(async () => (await prometheus.query('up == 1')).length === targets.length - 1);
  await Promise.all(provocations.map(({ begin }) => begin()));
  const seen = new Set<string>();
  const withoutLabel: string[] = [];
  const look = async () => {
    for (const { labels, state } of await prometheus.alerts()) {
      const { alertname = '' } = labels;
      if (state !== 'firing' || seen.has(alertname)) continue;
      seen.add(alertname);
      const named = annotationLabels(rules.find(({ alert }) => alert === alertname)?.annotations);
      withoutLabel.push(
        ...named.filter((label) => !(label in labels)).map((label) => `${alertname}: ${label}`),
      );
    }
    return all.every((name) => seen.has(name));
  };
  const isWhole = await until(look, 120_000).catch(() => false);
  expect({ isWhole, unseen: all.filter((name) => !seen.has(name)), withoutLabel }).toEqual({
    ...{ isWhole: true, unseen: [], withoutLabel: [] },
  });
}, 200_000);
