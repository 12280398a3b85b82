import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { newFolder, run } from '../../support/command.ts';
import { testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { openKeyBackend } from '../../support/key-backend.ts';
import { until } from '../../support/until.ts';
import { openSandbox, startGateway, workersOf } from './gateways.ts';

const auth = { keys: { source: 'upstream' } } as const;

async function check(url: string, ...args: string[]) {
  const folder = newFolder();
  const ports = {
    listen: { host: '127.0.0.1', port: await freePort() },
    admin: { host: '127.0.0.1', port: await freePort() },
  };
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(testConfig(folder, url, { auth, ...ports })));
  const { code, stdout } = await run(['check', '--config', file, ...args]);
  return { code, lines: stdout.split('\n').filter((line) => line.includes('keys: ')) };
}

it('check tries a key that nobody has, and warns if the backend does not refuse it', async () => {
  const sandbox = await openSandbox();
  const ok = 'ok   keys: no key list: the backend is asked with GET /v2/get_balance, and 0 keys are known';
  expect(await check(sandbox.url)).toEqual({ code: 0, lines: [ok] });
  const backend = await openKeyBackend();
  const { keys } = backend;
  keys.get = () => 'M-1';
  const any = 'warn keys: GET /v2/get_balance accepts ANY secret key: everyone who calls the gateway is M-1';
  expect(await check(backend.url)).toEqual({ code: 0, lines: [ok, any] });
  backend.answer = (res) => res.writeHead(404).end();
  const status =
    'warn keys: GET /v2/get_balance must answer 401 or 403 to an invalid secret key: GET answered 404';
  expect(await check(backend.url)).toEqual({ code: 0, lines: [ok, status] });
  const skipped = 'skip keys: not checked (--offline)';
  expect(await check(backend.url, '--offline')).toMatchObject({ code: 0, lines: [skipped] });
});

it('after SIGHUP no worker takes a key that the backend has revoked', async () => {
  const backend = await openKeyBackend();
  const gateway = await startGateway(testConfig(newFolder(), backend.url, { workers: 2, auth }));
  await workersOf(gateway, 2);
  const pay = () => withdraw(gateway.url, { secret: 'sk_a', key: randomUUID() });
  const payOften = () => Promise.all(Array.from({ length: 10 }, pay));
  const statuses = (answers: TestAnswer[]) => [...new Set(answers.map(({ status }) => status))];
  await until(async () => (await payOften()) && backend.probes.length === 2);
  backend.keys.clear();
  expect(statuses(await payOften())).toEqual([201]);
  gateway.child.kill('SIGHUP');
  // Each worker asks again, once.
  await until(async () => (await payOften()) && backend.probes.length >= 4);
  expect(statuses(await payOften())).toEqual([401]);
  expect(await gateway.end()).toBe(0);
});
