import { randomUUID } from 'node:crypto';
import { renameSync, rmSync, writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { keyFileIn } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { isAlive } from '../../support/process-life.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway, workersOf } from './gateways.ts';

const sandbox = await openSandbox();

async function open(workers: number) {
  const config = configFor(sandbox, { workers });
  const path = keyFileIn(config);
  return { gateway: await startGateway(config), path };
}

const BRAVO_ALONE =
  'merchants: [{ code: M-BRAVO, keys: [{ id: b, dangerouslyPlainSecret: sk_sandbox_bravo }] }]';

/** Replaces the file atomically, so that the gateway never reads half of it. */
function replace(path: string, text: string): void {
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
}

/** The log lines about the key file. */
const reloadsIn = ({ lines }: SpawnedGateway) =>
  lines.map((line) => JSON.parse(line)).filter(({ msg }) => /^the secret keys /.test(msg));

const balance = ({ url }: SpawnedGateway, secret: string) =>
  send(url, { path: '/v2/get_balance', headers: { Authorization: `Bearer ${secret}` } });

const reloads = async ({ adminUrl }: SpawnedGateway, result: string) =>
  await metric(adminUrl, 'oncegate_key_reloads_total', { result });

describe.each([1, 2])('SIGHUP, %i workers', (workers) => {
  it('reloads an unchanged key file in each process, and logs it once', async () => {
    const { gateway } = await open(workers);
    for (const times of [1, 2]) {
      process.kill(gateway.pid, 'SIGHUP');
      await until(async () => (await reloads(gateway, 'ok')) === times * workers);
      await until(() => reloadsIn(gateway).length >= times);
    }
    expect(await gateway.end()).toBe(0);
    const line = { level: 'info', msg: 'the secret keys were reloaded', keys: 8 };
    expect(reloadsIn(gateway)).toMatchObject([line, line]);
  });

  it('ends no process and no execution', async () => {
    const { gateway, path } = await open(workers);
    const pids = workers > 1 ? await workersOf(gateway, workers) : [];
    const key = randomUUID();
    const answer = withdraw(gateway.url, { key, fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey(key) === 1);
    // When a terminal closes, all its processes get SIGHUP.
    for (const pid of [gateway.pid, ...pids]) process.kill(pid, 'SIGHUP');
    replace(path, BRAVO_ALONE);
    for (const pid of [gateway.pid, ...pids]) process.kill(pid, 'SIGHUP');
    await until(async () => (await balance(gateway, 'sk_sandbox_alpha')).status === 401);
    sandbox.endDelays(key);
    expect(await answer).toMatchObject({ status: 201 });
    expect((await balance(gateway, 'sk_sandbox_bravo')).status).toBe(200);
    expect([gateway.pid, ...pids].every(isAlive)).toBe(true);
    expect(await gateway.end()).toBe(0);
  });

  it('keeps the old keys if the key file cannot be read, and logs why, once', async () => {
    const { gateway, path } = await open(workers);
    rmSync(path);
    process.kill(gateway.pid, 'SIGHUP');
    await until(async () => Number(await reloads(gateway, 'refused')) >= workers);
    await until(() => reloadsIn(gateway).length > 0);
    for (let i = 0; i < 4; i++) expect((await balance(gateway, 'sk_sandbox_alpha')).status).toBe(200);
    expect(await gateway.end()).toBe(0);
    expect(reloadsIn(gateway)).toMatchObject([
      {
        level: 'error',
        msg: 'the secret keys cannot be reloaded; the old ones stay in force',
        reason: 'the file: cannot be read (ENOENT)',
      },
    ]);
  });

  it('is not needed after a change of the key file, which is read and logged once', async () => {
    const { gateway, path } = await open(workers);
    replace(path, BRAVO_ALONE);
    await until(async () => (await reloads(gateway, 'ok')) === workers);
    expect(await gateway.end()).toBe(0);
    expect(reloadsIn(gateway)).toMatchObject([{ keys: 1 }]);
  });
});
