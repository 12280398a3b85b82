import { randomUUID } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { BEARER, isReplay, send, type TestAnswer, withdraw } from '../../support/client.ts';
import { configFor, keyFileIn } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { limitFiles } from '../../support/limit-files.ts';
import { startPrometheus } from '../../support/prometheus.ts';
import { startRedis } from '../../support/redis-server.ts';
import { read } from '../../support/repository.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openSandbox, stackForFile } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
import { RULES_FILE } from './support/artifacts.ts';

/** What the runbook says: the lines of its table. */
const [, TABLE = ''] = read('docs/runbook/README.md').split(/^## What merchants get$/m);
const LINES = TABLE.split(/^## /m, 1)
  .join('')
  .split('\n')
  .filter((line) => line.startsWith('| ') && !line.startsWith('| while'))
  .map((line) => {
    const [situation = '', alerts = '', payout = '', replay = '', balance = ''] = line
      .slice(2, -2)
      .split(' | ');
    const names = [...alerts.matchAll(/\[(\w+)\]/g)].map(([, name = '']) => name);
    return { situation, alerts: names, payout, replay, balance };
  });

const redis = await startRedis();
const retried = { idempotency: { completeRetryMs: 300, countDoubtsEveryMs: 200 } };
// Its Redis never comes back, so its shutdown does not wait long.
const onItsRedis = await stackForFile({
  ...{ ...onRedis(redis, 1000), ...retried, shutdown: { completeMs: 1000 } },
});
const sandbox = await openSandbox();
const onDisk = await spawnGateway(configFor(sandbox, retried));
const withBackend = await stackForFile(retried);
const gateways = [onItsRedis, onDisk, withBackend];
/** The admin port of a gateway that is started again and again. */
const adminPort = await freePort();
const prometheus = await startPrometheus(
  [...gateways.map(({ adminUrl }) => new URL(adminUrl).host), `127.0.0.1:${adminPort}`],
  readFileSync(RULES_FILE, 'utf8'),
);
await until(async () => (await prometheus.query('up == 1')).length === gateways.length);

/** A gateway in a situation. `known`: a key whose payout has a result. `fault` of the sandbox: of each request. */
interface Situation {
  gateway: { url: string; adminUrl: string };
  known: string;
  fault?: string;
}

async function paid({ url }: { url: string }): Promise<string> {
  const key = randomUUID();
  expect((await withdraw(url, { key })).status).toBe(201);
  return key;
}

const brought: { known?: string; late?: string } = {};

/** How each situation comes about, one after the other. */
const SITUATIONS: Record<string, () => Promise<Situation>> = {
  'Redis is away': async () => {
    brought.known = await paid(onItsRedis);
    const late = randomUUID();
    const running = withdraw(onItsRedis.url, { key: late, fault: 'delay=60000' });
    await until(() => onItsRedis.sandbox.requests.ofKey(late) > 0);
    await redis.kill();
    onItsRedis.sandbox.endDelays(late);
    // Its merchant gets the result, although it could not be stored.
    expect((await running).status).toBe(201);
    brought.late = late;
    return { gateway: onItsRedis, known: brought.known };
  },
  'Redis is away, and has not stored the answer that a merchant got': async () => ({
    gateway: onItsRedis,
    known: brought.late ?? '',
  }),
  'the disk of SQLite is full': async () => {
    const known = await paid(onDisk);
    limitFiles(onDisk.pid, 1);
    return { gateway: onDisk, known };
  },
  'the backend breaks connections': async () => ({
    ...{ gateway: withBackend, known: await paid(withBackend), fault: 'execute-then-reset' },
  }),
  'the backend answers 500': async () => ({
    ...{ gateway: withBackend, known: await paid(withBackend), fault: 'status=500' },
  }),
  'the backend refuses connections': async () => {
    const known = await paid(withBackend);
    await withBackend.sandbox.close();
    return { gateway: withBackend, known };
  },
  'the key file lacks the merchant': async () => {
    const others =
      'merchants: [{ code: M-BRAVO, keys: [{ id: b, dangerouslyPlainSecret: sk_sandbox_bravo }] }]';
    writeFileSync(keyFileIn(withBackend.config), others);
    return { gateway: withBackend, known: randomUUID() };
  },
};

it('has every situation of the runbook', () => {
  expect(LINES.map(({ situation }) => situation)).toEqual(Object.keys(SITUATIONS));
});

function expectAsSaid(answer: TestAnswer, said: string, what: string): void {
  if (said === 'the first result') {
    expect([answer.status, isReplay(answer)], what).toEqual([201, true]);
    return;
  }
  const [, status, code] = /^(\d{3})(?: `(\w+)`)?$/.exec(said) ?? [];
  expect([answer.status, code && codeOf(answer)], what).toEqual([Number(status), code]);
  expect(isReplay(answer), what).toBe(false);
}

it.each(LINES)(
  'while $situation, its alerts begin and merchants get what the runbook says',
  async ({ situation, alerts, payout, replay, balance }) => {
    const begin = SITUATIONS[situation] as () => Promise<Situation>;
    const { gateway, known, fault } = await begin();
    const { url, adminUrl } = gateway;
    const faulty = fault === undefined ? {} : { fault };
    const isShown = async (alert: string) => {
      // Pending ones too: most of them wait for a minute before they fire. Some are of all gateways.
      const selector = `alertname="${alert}", instance=~"|${new URL(adminUrl).host}"`;
      return (await prometheus.query(`ALERTS{${selector}}`)).length > 0;
    };
    await until(async () => {
      await withdraw(url, { key: randomUUID(), ...faulty });
      return (await Promise.all(alerts.map(isShown))).every(Boolean);
    });
    const headers = { ...BEARER, ...(fault === undefined ? {} : { 'X-Sandbox-Fault': fault }) };
    expectAsSaid(await withdraw(url, { key: randomUUID(), ...faulty }), payout, 'a new payout');
    expectAsSaid(await withdraw(url, { key: known, ...faulty }), replay, 'a replay');
    expectAsSaid(await send(url, { path: '/v2/get_balance', headers }), balance, 'a balance read');
  },
  60_000,
);

it('a gateway that is killed again and again pages, although Prometheus reaches each of its processes', async () => {
  const config = { ...configFor(sandbox), admin: { host: '127.0.0.1', port: adminPort } };
  const selector = `instance="127.0.0.1:${adminPort}"`;
  const firing = () =>
    prometheus.query(`ALERTS{alertname="OncegateRestarts", alertstate="firing", ${selector}}`);
  const startedS = async () =>
    (await prometheus.query(`process_start_time_seconds{${selector}} and up == 1`))[0]?.value ?? 0;
  for (let before = 0, kills = 0; kills < 4; kills++) {
    expect(await firing()).toEqual([]);
    const gateway = await spawnGateway(config);
    before = await until(async () => {
      const now = await startedS();
      return now > before ? now : undefined;
    });
    // The time of a start has whole seconds, and a gateway starts in less than one.
    await until(() => Math.round(Date.now() / 1000) > before);
    await gateway.end('SIGKILL');
  }
  await until(async () => (await firing()).length === 1);
}, 60_000);
