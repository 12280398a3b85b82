import { randomUUID } from 'node:crypto';
import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import type { ConfigInput } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { killAfterTests } from '../../support/process-life.ts';
import { startRedis } from '../../support/redis-server.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';
import { childrenOf, codeOf, configFor, isReplay, openSandbox, startGateway, workersOf } from './gateways.ts';
import { newKey, PEPPER } from './key-commands.ts';
import { startTraffic } from './traffic.ts';

const sandbox = await openSandbox();

type Operation = NonNullable<ConfigInput['operations']>[number];

const INDEX = '/v1/index.php';
const payout = (more: Operation['idempotency'] = {}, name = 'withdraw'): Operation => ({
  name,
  match: { method: 'POST', path: INDEX, where: { action: 'withdraw' } },
  idempotency: more,
});
const balance: Operation = { name: 'balance', match: { method: 'GET', path: '/v2/get_balance' } };

async function open(workers: number, more: Partial<ConfigInput> = {}) {
  const config = configFor(sandbox, { workers, operations: [balance, payout()], ...more });
  return { config, gateway: await startGateway(config) };
}

/** Replaces the configuration file atomically. */
function write({ file }: SpawnedGateway, config: ConfigInput | string): void {
  writeFileSync(`${file}.new`, typeof config === 'string' ? config : stringify(config));
  renameSync(`${file}.new`, file);
}

const reloads = async ({ adminUrl }: SpawnedGateway, result: string): Promise<number> =>
  await metric(adminUrl, 'oncegate_config_reloads_total', { result });

/** Writes a file and waits until the gateway has read it. The gateway reads it within a second of the change. */
async function reload(gateway: SpawnedGateway, config: ConfigInput | string, result: string): Promise<void> {
  const before = await reloads(gateway, result);
  write(gateway, config);
  process.kill(gateway.pid, 'SIGHUP');
  await until(async () => (await reloads(gateway, result)) > before);
}

const logged = ({ lines }: SpawnedGateway, what: RegExp) =>
  lines.map((line) => JSON.parse(line)).filter(({ msg }) => what.test(msg));

const readiness = async ({ adminUrl }: SpawnedGateway) =>
  (await send(adminUrl, { path: '/readyz' })).json<{
    status: string;
    checks: { name: string; warnings?: string[] }[];
  }>();

const warningsOf = async (gateway: SpawnedGateway, check = 'configuration') =>
  (await readiness(gateway)).checks.find(({ name }) => name === check)?.warnings;

describe.each([1, 2])('a changed configuration, %i workers', (workers) => {
  it('loses no request while it is reloaded 20 times under load', async () => {
    const { gateway, config } = await open(workers);
    const traffic = startTraffic(gateway.url, 3);
    for (let i = 0; i < 20; i++) {
      const operations = [balance, payout({ key: i % 3 === 0 ? 'none' : 'optional' }, `payout${i % 2}`)];
      const limits = { bodyBytes: 5000 + i, headerBytes: 8000 + i, inFlight: 100 + i };
      const result = i % 5 === 4 ? 'refused' : i % 5 === 3 ? 'needs_restart' : 'ok';
      const file = { ...config, operations, limits, log: { level: i % 2 ? 'info' : 'warn' } } as ConfigInput;
      if (result === 'needs_restart') file.workers = 3;
      await reload(gateway, result === 'refused' ? 'upstream: {' : file, result);
    }
    await traffic.stop();
    expect(traffic.sent.length).toBeGreaterThan(20);
    for (const { answer, error } of traffic.sent)
      expect({ status: answer?.status, error }).toMatchObject({ status: 201 });
    for (const { key } of traffic.sent) expect(sandbox.ledger.payouts({ key })).toBe(1);
    const again = await Promise.all(
      traffic.sent.slice(-20).map(({ key }) => withdraw(gateway.url, { key, amount: 1 })),
    );
    for (const answer of again) expect([201, 422]).toContain(answer.status);
    expect(sandbox.ledger.duplicateKeys()).toEqual([]);
    expect(await gateway.end()).toBe(0);
  });

  it('is in force for the next request, and a running one ends under the old policy', async () => {
    const { gateway, config } = await open(workers);
    const [running, later] = [randomUUID(), randomUUID()];
    const first = withdraw(gateway.url, { key: running, fault: 'delay=60000,status=500' });
    await until(() => sandbox.requests.ofKey(running) === 1);
    const changed = payout({ key: 'required', release: [500] }, 'renamed');
    await reload(gateway, { ...config, operations: [changed] }, 'ok');
    for (let i = 0; i < 2 * workers; i++)
      expect(codeOf(await withdraw(gateway.url))).toBe('idempotency_key_required');
    sandbox.endDelays(running);
    // The status is in the new operation's `release`, and not in that of the running request.
    const status = (await first).status;
    expect(status).toBe(500);
    const replay = await withdraw(gateway.url, { key: running, fault: 'status=500' });
    expect({ status: replay.status, replayed: isReplay(replay) }).toEqual({ status: 500, replayed: true });
    expect((await withdraw(gateway.url, { key: later, fault: 'status=500' })).status).toBe(500);
    expect((await withdraw(gateway.url, { key: later })).status).toBe(201);
    expect(
      await metric(gateway.adminUrl, 'oncegate_requests_total', { operation: 'renamed' }),
    ).toBeGreaterThan(0);
    expect(await gateway.end()).toBe(0);
  });

  it('does not send a payout again whose operation has lost its key', async () => {
    const { gateway, config } = await open(workers);
    const [paid, running] = [randomUUID(), randomUUID()];
    expect((await withdraw(gateway.url, { key: paid })).status).toBe(201);
    const first = withdraw(gateway.url, { key: running, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(running) === 1);
    await reload(gateway, { ...config, operations: [payout({ key: 'none' })] }, 'ok');
    const retries = [paid, running, running].map((key) => withdraw(gateway.url, { key }));
    await until(async () => (await metric(gateway.adminUrl, 'oncegate_waiting')) === 2);
    sandbox.endDelays(running);
    const answers = await Promise.all(retries);
    expect(answers.map((answer) => [answer.status, isReplay(answer)])).toEqual(Array(3).fill([201, true]));
    await first;
    for (const key of [paid, running]) expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(await gateway.end()).toBe(0);
  });

  it('is refused with all its mistakes and without secrets, and the old one stays in force', async () => {
    const { gateway, config } = await open(workers);
    const secret = 'a-token-that-no-log-shows';
    const wrong = { ...config, admin: { host: '0.0.0.0', port: 0, tokn: secret }, limits: { bodyBytes: 0 } };
    await reload(gateway, stringify(wrong), 'refused');
    await until(() => logged(gateway, /configuration is refused/).length > 0);
    expect(logged(gateway, /configuration is refused/)[0]).toMatchObject({
      level: 'error',
      mistakes: expect.arrayContaining([
        expect.stringContaining('limits.bodyBytes: 0 is not allowed'),
        expect.stringContaining('admin.tokn: is not an option; is it token?'),
      ]),
    });
    expect(await warningsOf(gateway)).toEqual([
      expect.stringMatching(/^the newest version of the file was refused \(\d mistakes/),
    ]);
    await until(async () => (await readiness(gateway)).status === 'ready');
    expect((await withdraw(gateway.url, { key: randomUUID() })).status).toBe(201);
    await reload(gateway, config, 'ok');
    expect(await warningsOf(gateway)).toBeUndefined();
    expect(await gateway.end()).toBe(0);
    expect(gateway.lines.join('')).not.toContain(secret);
  });

  it('keeps what needs a restart, and says so, until the file has the old values again', async () => {
    const { gateway, config } = await open(workers);
    const other = { ...config, upstream: { ...config.upstream, url: 'http://127.0.0.1:1' }, workers: 3 };
    await reload(gateway, other, 'needs_restart');
    const warning = expect.stringMatching(/^needs a restart: (?=.*\bworkers\b)(?=.*upstream\.url)/);
    expect(await warningsOf(gateway)).toEqual([warning]);
    expect((await withdraw(gateway.url, { key: randomUUID() })).status).toBe(201);
    await reload(gateway, config, 'ok');
    expect(await warningsOf(gateway)).toBeUndefined();
    expect(await gateway.end()).toBe(0);
    expect(logged(gateway, /needs a restart$/)).toMatchObject([
      { level: 'warn', options: expect.arrayContaining(['workers', 'upstream.url']) },
    ]);
  });

  it('changes limits and the log level without SIGHUP, soon after the file has changed', async () => {
    const { gateway, config } = await open(workers);
    const large = () => withdraw(gateway.url, { headers: { 'X-Large': 'a'.repeat(4000) } });
    expect((await large()).status).toBe(201);
    write(gateway, { ...config, limits: { headerBytes: 2048, bodyBytes: 10 }, log: { level: 'warn' } });
    await until(async () => (await reloads(gateway, 'ok')) === 1);
    for (let i = 0; i < 2 * workers; i++) {
      expect((await large()).status).toBe(431);
      expect(codeOf(await withdraw(gateway.url, { key: randomUUID() }))).toBe('body_too_large');
    }
    write(gateway, config);
    await until(async () => (await reloads(gateway, 'ok')) === 2);
    for (let i = 0; i < 2 * workers; i++) expect((await large()).status).toBe(201);
    expect(await gateway.end()).toBe(0);
    const requests = logged(gateway, /^request$/).map(({ outcome }) => outcome);
    expect(requests).not.toContain('body_too_large');
    expect(requests.length).toBeGreaterThanOrEqual(1 + 2 * workers);
  });
});

describe('a worker that starts after a reload', () => {
  it('gets the version in force, although the file is invalid by now, and what keys protected before', async () => {
    const { gateway, config } = await open(2);
    const key = randomUUID();
    expect((await withdraw(gateway.url, { key })).status).toBe(201);
    const required: Operation = {
      name: 'added',
      match: { method: 'POST', path: '/added' },
      idempotency: { key: 'required' },
    };
    await reload(gateway, { ...config, operations: [payout({ key: 'none' }), required] }, 'ok');
    await reload(gateway, 'upstream: {', 'refused');
    // One after the other: a port that the system has chosen is lost when no worker listens on it.
    for (const old of await workersOf(gateway, 2)) {
      process.kill(old, 'SIGKILL');
      await until(async () => !(await workersOf(gateway, 2)).includes(old));
    }
    for (let i = 0; i < 4; i++) {
      const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
      const answer = await send(gateway.url, { method: 'POST', path: '/added', headers });
      expect(codeOf(answer)).toBe('idempotency_key_required');
      expect(isReplay(await withdraw(gateway.url, { key }))).toBe(true);
    }
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(await gateway.end()).toBe(0);
  });

  it('knows what keys a version protected that came and went while it started', async () => {
    const redis = await startRedis();
    const proxy = await startProxy(redis.port);
    const auth = { pepper: PEPPER, forward: 'replace', replaceWith: 'Bearer sk_sandbox_alpha' } as const;
    const patient = { connectTimeoutMs: 30_000, timeoutMs: 30_000 };
    const unprotected = [payout({ key: 'none' })];
    const keys = { source: 'redis', url: proxy.url, ...patient } as const;
    const config = configFor(sandbox, { workers: 2, operations: unprotected, auth: { ...auth, keys } });
    const file = join(newFolder(), 'gateway.yaml');
    writeFileSync(file, stringify(config));
    const secret = await newKey(['issue', '--config', file, '--merchant', 'M-ALPHA']);
    const gateway = await startGateway(config);
    const pay = (key: string) => withdraw(gateway.url, { key, secret });
    const key = randomUUID();
    redis.freeze();
    const connections = proxy.accepted;
    process.kill(childrenOf(gateway.pid)[0] as number, 'SIGKILL');
    // The new worker has its configuration, and waits for its secret keys.
    await until(() => proxy.accepted > connections);
    await reload(gateway, { ...config, operations: [payout()] }, 'ok');
    expect((await pay(key)).status).toBe(201);
    await reload(gateway, { ...config, operations: unprotected }, 'ok');
    redis.thaw();
    await workersOf(gateway, 2);
    await until(async () => !(await warningsOf(gateway, 'workers')));
    for (let i = 0; i < 8; i++) expect(isReplay(await pay(key))).toBe(true);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(await gateway.end()).toBe(0);
  });

  it('gets versions that come and go after it has asked for them, before it serves', async () => {
    const [folder, unprotected] = [newFolder(), [payout({ key: 'none' })]];
    const [hold, preload] = [join(folder, 'hold'), join(folder, 'preload.mjs')];
    // While the file `hold` exists, a worker listens, and the primary does not hear of it.
    writeFileSync(
      preload,
      `import { existsSync, writeFileSync } from 'node:fs';
       const send = process.send?.bind(process);
       if (send) process.send = (message, ...rest) => {
         if (message.kind !== 'listening' || !existsSync('${hold}')) return send(message, ...rest);
         writeFileSync('${hold}.reached', String(process.pid));
         const timer = setInterval(() => {
           if (existsSync('${hold}')) return;
           clearInterval(timer);
           send(message, ...rest);
         }, 10);
         return true;
       };`,
    );
    const config = configFor(sandbox, { workers: 2, operations: unprotected });
    const gateway = await startGateway(config, { NODE_OPTIONS: `--import ${preload}` });
    writeFileSync(hold, '');
    const [killed] = await workersOf(gateway, 2);
    process.kill(killed as number, 'SIGKILL');
    // The worker may have created the file, and not yet written into it.
    const idIn = () => (existsSync(`${hold}.reached`) ? Number(readFileSync(`${hold}.reached`, 'utf8')) : 0);
    const starting = killAfterTests(await until(idIn));
    const key = randomUUID();
    await reload(gateway, { ...config, operations: [payout()] }, 'ok');
    expect((await withdraw(gateway.url, { key })).status).toBe(201);
    await reload(gateway, { ...config, operations: unprotected }, 'ok');
    const pids = () => new Set(logged(gateway, /^request$/).map(({ pid }) => pid as number));
    await until(async () => {
      expect(isReplay(await withdraw(gateway.url, { key }))).toBe(true);
      return pids().has(starting);
    });
    rmSync(hold);
    await until(async () => !(await warningsOf(gateway, 'workers')));
    for (let i = 0; i < 4; i++) expect(isReplay(await withdraw(gateway.url, { key }))).toBe(true);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(await gateway.end()).toBe(0);
  });

  it('is told to an operator if a paused worker has not confirmed a reload, and takes it when it runs again', async () => {
    const { gateway, config } = await open(2);
    const [paused] = await workersOf(gateway, 2);
    process.kill(paused as number, 'SIGSTOP');
    write(gateway, { ...config, operations: [payout({ key: 'required' })] });
    await until(() => logged(gateway, /not confirmed/).length > 0, 15_000);
    expect(await warningsOf(gateway, 'workers')).toEqual(['1 of 2 have not confirmed the new configuration']);
    process.kill(paused as number, 'SIGCONT');
    await until(async () => !(await warningsOf(gateway, 'workers')));
    for (let i = 0; i < 8; i++) expect(codeOf(await withdraw(gateway.url))).toBe('idempotency_key_required');
    expect(await gateway.end()).toBe(0);
  });
});
