import { randomUUID } from 'node:crypto';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { stringify } from 'yaml';
import { isReplay, send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import {
  type ConfigInput,
  configFor,
  keyFileIn,
  type MoreConfig,
  replaceFile,
  testConfig,
} from '../../support/config.ts';
import { openKeyBackend } from '../../support/key-backend.ts';
import { metric } from '../../support/metrics.ts';
import { isAlive } from '../../support/process-life.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openSandbox, readiness } from '../../support/stack.ts';
import { startHere } from '../../support/started.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
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

async function open(more: MoreConfig = {}, url = sandbox.url) {
  const config = testConfig(newFolder(), url, { operations: [balance, payout()], ...more });
  const gateway = await startHere(config);
  const reloads = (result: string) => metric(gateway.adminUrl, 'oncegate_config_reloads_total', { result });
  const write = (changed: ConfigInput | string) =>
    replaceFile(gateway.file, typeof changed === 'string' ? changed : stringify(changed));
  return {
    ...{ gateway, config, reloads, write },
    /** Writes a file and waits until the gateway has read it. */
    async reload(changed: ConfigInput | string, result: string): Promise<void> {
      const before = await reloads(result);
      write(changed);
      process.emit('SIGHUP');
      await until(async () => (await reloads(result)) > before);
    },
    logged: (what: RegExp) => gateway.log.filter(({ msg }) => what.test(`${msg}`)),
    async readiness() {
      const { body, check } = await readiness(gateway);
      return { status: body.status, warnings: check('configuration')?.warnings };
    },
  };
}

describe('a changed configuration', () => {
  it('loses no request while it is reloaded 20 times under load', async () => {
    const { gateway, config, reload } = await open();
    const traffic = startTraffic(gateway.url, 3);
    for (let i = 0; i < 20; i++) {
      const operations = [balance, payout({ key: i % 3 === 0 ? 'none' : 'optional' }, `payout${i % 2}`)];
      const limits = { bodyBytes: 5000 + i, headerBytes: 8000 + i, inFlight: 100 + i };
      const result = i % 5 === 4 ? 'refused' : i % 5 === 3 ? 'needs_restart' : 'ok';
      const file = { ...config, operations, limits, log: { level: i % 2 ? 'info' : 'warn' } } as ConfigInput;
      if (result === 'needs_restart') file.listen = { host: '127.0.0.1', port: 1 };
      await reload(result === 'refused' ? 'upstream: {' : file, result);
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
  });

  it('is in force for the next request, and a running one ends under the old policy', async () => {
    const { gateway, config, reload } = await open();
    const [running, later] = [randomUUID(), randomUUID()];
    const first = withdraw(gateway.url, { key: running, fault: 'delay=60000,status=500' });
    await until(() => sandbox.requests.ofKey(running) === 1);
    const changed = payout({ key: 'required', release: [500], unknown: [418] }, 'renamed');
    await reload({ ...config, operations: [changed] }, 'ok');
    expect(codeOf(await withdraw(gateway.url))).toBe('idempotency_key_required');
    sandbox.endDelays(running);
    // The status is in the new operation's `release`, and not in that of the running request.
    expect((await first).status).toBe(500);
    const replay = await withdraw(gateway.url, { key: running, fault: 'status=500' });
    expect({ status: replay.status, replayed: isReplay(replay) }).toEqual({ status: 500, replayed: true });
    expect((await withdraw(gateway.url, { key: later, fault: 'status=500' })).status).toBe(500);
    expect((await withdraw(gateway.url, { key: later })).status).toBe(201);
    // The lists replace those of the default, which have 429 and 504.
    for (const [status, retried] of [
      [418, 409],
      [429, 429],
      [504, 504],
    ]) {
      const [key, fault] = [randomUUID(), `status=${status}`];
      expect((await withdraw(gateway.url, { key, fault })).status).toBe(status);
      expect((await withdraw(gateway.url, { key, fault })).status).toBe(retried);
      expect(sandbox.requests.ofKey(key)).toBe(1);
    }
    const renamed = { operation: 'renamed' };
    expect(await metric(gateway.adminUrl, 'oncegate_requests_total', renamed)).toBeGreaterThan(0);
  });

  it('does not send a payout again whose operation has lost its key', async () => {
    const { gateway, config, reload } = await open();
    const [paid, running] = [randomUUID(), randomUUID()];
    expect((await withdraw(gateway.url, { key: paid })).status).toBe(201);
    const first = withdraw(gateway.url, { key: running, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(running) === 1);
    await reload({ ...config, operations: [payout({ key: 'none' })] }, 'ok');
    const retries = [paid, running, running].map((key) => withdraw(gateway.url, { key }));
    await until(async () => (await metric(gateway.adminUrl, 'oncegate_waiting')) === 2);
    sandbox.endDelays(running);
    const answers = await Promise.all(retries);
    expect(answers.map((answer) => [answer.status, isReplay(answer)])).toEqual(Array(3).fill([201, true]));
    await first;
    for (const key of [paid, running]) expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('has the keys looked up that are in doubt already, as a start has', async () => {
    const lookupToken = 'token-of-the-gateway-itself';
    const { url, requests } = await openSandbox({ lookupToken });
    const times = { lock: { leaseMs: 1500 }, upstream: { connectTimeoutMs: 1000 } };
    const { gateway, config, reload } = await open(times, url);
    const lookup = {
      path: '/v1/transactions?merchant={merchant}&key={key}',
      headers: { authorization: `Bearer ${lookupToken}` },
      completedStatus: 201,
    };
    const looking = { ...config, operations: [payout({ inDoubt: 'lookup', lookup })] };
    const lookups = () => requests.ofPath('GET /v1/transactions');
    for (const begin of [() => startHere(looking), () => reload(looking, 'ok')]) {
      const [key, before] = [randomUUID(), lookups()];
      expect((await withdraw(gateway.url, { key, fault: 'execute-then-reset' })).status).toBe(502);
      await begin();
      await until(() => lookups() > before);
      await until(async () => isReplay(await withdraw(gateway.url, { key })));
      expect(requests.ofKey(key)).toBe(1);
    }
  });

  it('is counted for as long as it is refused, so that its alert lasts, and logged once', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    onTestFinished(() => void vi.useRealTimers());
    const { reload, reloads, logged } = await open();
    await reload('upstream: {', 'refused');
    const first = await reloads('refused');
    for (const more of [1, 2]) {
      vi.advanceTimersByTime(10_000);
      await until(async () => (await reloads('refused')) === first + more);
    }
    expect(logged(/configuration is refused/)).toHaveLength(first);
  });

  it('is refused with all its mistakes, or waits for a restart, and says so until the file has the old values again', async () => {
    const { gateway, config, reload, readiness, logged } = await open();
    const secret = 'a-token-that-no-log-shows';
    const wrong = { ...config, admin: { host: '0.0.0.0', port: 0, tokn: secret }, limits: { bodyBytes: 0 } };
    await reload(stringify(wrong), 'refused');
    expect(logged(/configuration is refused/)).toMatchObject([
      {
        level: 'error',
        mistakes: expect.arrayContaining([
          expect.stringContaining('limits.bodyBytes: 0 is not allowed'),
          expect.stringContaining('admin.tokn: is not an option; is it token?'),
        ]),
      },
    ]);
    expect(await readiness()).toEqual({
      status: 'ready',
      warnings: [expect.stringMatching(/^the newest version of the file was refused \(\d mistakes/)],
    });
    expect((await withdraw(gateway.url, { key: randomUUID() })).status).toBe(201);
    const listen = { host: '127.0.0.1', port: 1 };
    const upstream = { ...config.upstream, url: 'http://127.0.0.1:1' };
    await reload({ ...config, listen, upstream }, 'needs_restart');
    const warning = expect.stringMatching(/^needs a restart: (?=.*listen\.port)(?=.*upstream\.url)/);
    expect((await readiness()).warnings).toEqual([warning]);
    expect((await withdraw(gateway.url, { key: randomUUID() })).status).toBe(201);
    await reload(config, 'ok');
    expect((await readiness()).warnings).toBeUndefined();
    expect(logged(/needs a restart$/)).toMatchObject([
      { level: 'warn', options: expect.arrayContaining(['listen.port', 'upstream.url']) },
    ]);
    expect(JSON.stringify(logged(/./))).not.toContain(secret);
  });

  it('changes limits and the log level without SIGHUP, soon after the file has changed', async () => {
    const { gateway, config, reloads, write, logged } = await open();
    const large = () => withdraw(gateway.url, { headers: { 'X-Large': 'a'.repeat(4000) } });
    expect((await large()).status).toBe(201);
    write({ ...config, limits: { headerBytes: 2048, bodyBytes: 10 }, log: { level: 'warn' } });
    await until(async () => (await reloads('ok')) === 1);
    expect((await large()).status).toBe(431);
    expect(codeOf(await withdraw(gateway.url, { key: randomUUID() }))).toBe('body_too_large');
    const before = logged(/^request$/).length;
    write(config);
    await until(async () => (await reloads('ok')) === 2);
    expect((await large()).status).toBe(201);
    // The line of a request is written in the next turn.
    await until(() => logged(/^request$/).length > before);
    expect(logged(/^request$/).map(({ outcome }) => outcome)).toEqual(['forwarded', 'forwarded']);
  });
});

const BRAVO_ALONE =
  'merchants: [{ code: M-BRAVO, keys: [{ id: b, dangerouslyPlainSecret: sk_sandbox_bravo }] }]';

const statusOf = async ({ url }: { url: string }, secret: string) =>
  (await send(url, { path: '/v2/get_balance', headers: { Authorization: `Bearer ${secret}` } })).status;

describe('changed secret keys', () => {
  it('are forgotten at a SIGHUP if the backend has them', async () => {
    const backend = await openKeyBackend();
    const { gateway } = await open({ auth: { keys: { source: 'upstream' } } }, backend.url);
    const pay = async () => (await withdraw(gateway.url, { secret: 'sk_a', key: randomUUID() })).status;
    expect(await pay()).toBe(201);
    backend.keys.clear();
    expect(await pay()).toBe(201);
    process.emit('SIGHUP');
    await until(async () => (await pay()) === 401);
    expect(backend.probes).toHaveLength(2);
  });
});

describe('SIGHUP', () => {
  it('ends no process and no execution', async () => {
    const config = configFor(sandbox);
    const gateway = await spawnGateway(config);
    const key = randomUUID();
    const answer = withdraw(gateway.url, { key, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(key) === 1);
    process.kill(gateway.pid, 'SIGHUP');
    replaceFile(keyFileIn(config), BRAVO_ALONE);
    process.kill(gateway.pid, 'SIGHUP');
    await until(async () => (await statusOf(gateway, 'sk_sandbox_alpha')) === 401);
    sandbox.endDelays(key);
    expect(await answer).toMatchObject({ status: 201 });
    expect(await statusOf(gateway, 'sk_sandbox_bravo')).toBe(200);
    expect(isAlive(gateway.pid)).toBe(true);
    expect(await gateway.end()).toBe(0);
  });
});
