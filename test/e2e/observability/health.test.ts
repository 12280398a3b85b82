import { readFileSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { expect, it, onTestFinished } from 'vitest';
import type { Overview } from '../../../src/console/contract.ts';
import { rawBackend } from '../../support/backend.ts';
import { send } from '../../support/client.ts';
import { run } from '../../support/command.ts';
import { configFile } from '../../support/config.ts';
import { consoleOptions, loggedIn } from '../../support/console.ts';
import { scrape } from '../../support/metrics.ts';
import { startRedis } from '../../support/redis-server.ts';
import { readiness, stackForTest } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

it('/readyz is ready when store, backend and keys are, and names an unreachable backend, as the console does', async () => {
  const stack = await stackForTest({ admin: consoleOptions });
  const { status, body } = await readiness(stack);
  expect(status).toBe(200);
  expect(body).toEqual({
    status: 'ready',
    checks: [
      { name: 'store', ok: true, detail: 'sqlite', warnings: [] },
      { name: 'upstream', ok: true, detail: 'reachable' },
      { name: 'keys', ok: true, detail: expect.stringMatching(/^\d+ keys from /) },
      { name: 'draining', ok: true, detail: 'serving' },
    ],
  });
  await stack.sandbox.close();
  const unready = await until(async () => {
    const seen = await readiness(stack);
    return seen.check('upstream')?.ok ? undefined : seen;
  });
  expect([unready.status, unready.body.status]).toEqual([503, 'not ready']);
  const { checks } = unready.body;
  expect(checks.filter(({ ok }) => !ok)).toEqual([{ name: 'upstream', ok: false, detail: 'ECONNREFUSED' }]);
  const overview = await (await loggedIn(stack.adminUrl)).ask<Overview>('api/overview');
  expect(overview).toMatchObject({ state: 'failing', checks });
  const alive = await send(stack.adminUrl, { path: '/healthz' });
  expect(alive.headers['content-type']).toMatch(/^application\/json/);
  expect([alive.status, String(alive.body)]).toEqual([200, '{"status":"ok"}']);
});

it('oncegate health asks the admin port of the configuration, and says why it gets no answer', async () => {
  const stack = await stackForTest();
  const port = Number(new URL(stack.adminUrl).port);
  const ask = (host: string, ofPort = port) => {
    const admin = { host, port: ofPort, token: 'a-token-of-the-admin-port' };
    return run(['health', '--config', configFile({ upstream: { url: stack.sandbox.url }, admin })]);
  };
  for (const host of ['127.0.0.1', '0.0.0.0', 'localhost'])
    expect(await ask(host), host).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/"ok"/),
      stderr: '',
    });
  // The sandbox has no such path.
  const { stderr } = await ask('127.0.0.1', stack.sandbox.port);
  expect(stderr).toMatch(/^oncegate: http:\/\/127\.0\.0\.1:\d+\/healthz: 40\d\n$/);
  expect(await ask('127.0.0.1', 0)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/admin\.port is 0/),
  });
  await stack.shutdown();
  for (const [host, address] of Object.entries({ '0.0.0.0': '127.0.0.1', '::': '[::1]' })) {
    const { code, stderr } = await ask(host);
    expect([code, stderr]).toEqual([1, expect.stringContaining(`http://${address}:${port}/healthz: `)]);
  }
});

it('oncegate health finds a gateway well that runs with an earlier version of a file that has mistakes', async () => {
  const stack = await stackForTest();
  const port = Number(new URL(stack.adminUrl).port);
  const file = configFile({ upstream: { url: stack.sandbox.url }, admin: { port, token: `\${TOKEN}` } });
  const env = { TOKEN: 'a-token-of-the-admin-port', PORT: String(port) };
  const ask = async (text: string, more = {}) => {
    writeFileSync(file, text);
    return await run(['health', '--config', file], { env: { ...env, ...more } });
  };
  const text = readFileSync(file, 'utf8');
  const broken = [
    `${text}operations: [{ name: withdraw }]\n`,
    `${text}store: { kind: redis, url: "redis://hos`,
    `admin:\n  port: "\${PORT}"\n  tok`,
  ];
  for (const one of broken) expect(await ask(one), one).toMatchObject({ code: 0, stderr: '' });
  expect(await ask(text, { TOKEN: '' })).toMatchObject({ code: 0 });
  // Without an answer, the mistake is what the operator has to know.
  await stack.shutdown();
  expect(await ask(`${text}nonsense: 1\n`)).toMatchObject({
    code: 78,
    stderr: expect.stringContaining('nonsense: is not an option'),
  });
});

it('/readyz asks the backend and the store at most ten times a second, however often it is asked itself', async () => {
  let connections = 0;
  const url = await rawBackend(() => void connections++);
  const redis = await startRedis();
  const { adminUrl } = await stackForTest({ ...onRedis(redis), upstream: { url } });
  const agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
  onTestFinished(() => agent.destroy());
  const [sets, startedMs] = [await redis.commandCount('set'), performance.now()];
  const answers = await Promise.all(
    Array.from({ length: 400 }, () => send(adminUrl, { path: '/readyz', agent })),
  );
  const most = 10 * Math.ceil((performance.now() - startedMs) / 1000);
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
  expect(connections).toBeLessThanOrEqual(most);
  // The gateways also visit the store.
  expect((await redis.commandCount('set')) - sets).toBeLessThanOrEqual(most + 5);
  expect(most).toBeLessThan(200);
});

it('a gateway on Redis shows how it is configured, its warnings, and nothing of SQLite', async () => {
  const redis = await startRedis({ args: ['--appendfsync', 'everysec'] });
  const stack = await stackForTest({
    ...onRedis(redis, 1000),
    idempotency: { undeclared: 'pass' },
    operations: [
      {
        name: 'withdraw',
        match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
        idempotency: { key: 'optional' },
      },
    ],
  });
  const shown = await until(async () => {
    const one = await scrape(stack.adminUrl);
    return one.value('oncegate_config_warnings', { about: 'operations' }) ? one : undefined;
  });
  expect(shown.value('oncegate_store_disk_free_bytes')).toBeUndefined();
  expect(shown.value('oncegate_sqlite_wal_bytes')).toBe(0);
  expect(shown.value('oncegate_sqlite_commit_duration_seconds_count')).toBe(0);
  expect(shown.table('oncegate_config_info', 'mode', 'undeclared', 'store', 'keys')).toEqual({
    'protect pass redis file': 1,
  });
  const { status, body } = await readiness(stack);
  expect(status).toBe(200);
  const warnings = Object.fromEntries(body.checks.map((check) => [check.name, check.warnings?.length ?? 0]));
  for (const about of ['operations', 'store']) {
    expect(warnings[about], about).toBeGreaterThan(0);
    expect(shown.value('oncegate_config_warnings', { about }), about).toBe(warnings[about]);
  }
  expect(shown.value('oncegate_config_warnings', { about: 'certificates' })).toBe(0);
  // A key that has expired and is not revoked.
  expect(shown.value('oncegate_config_warnings', { about: 'keys' })).toBeGreaterThan(0);
});
