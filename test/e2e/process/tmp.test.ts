import http from 'node:http';
import { expect, it } from 'vitest';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { withdraw, send } from '../../support/client.ts';
import { until } from '../../support/until.ts';

it.each([0, 300])('idle keep-alive %d', async (delayMs) => {
  const sandbox = await createSandbox({ port: 0 });
  const g = await spawnGateway(testConfig(temporaryFolder(), sandbox.url, { shutdown: { delayMs, graceMs: 5000 } }));
  const agent = new http.Agent({ keepAlive: true });
  const p = send(g.url, { method: 'POST', path: '/v1/index.php', agent, headers: { authorization: 'Bearer sk_sandbox_alpha', 'x-service-idempotency': 'k', 'X-Sandbox-Fault': 'delay=800', 'content-type': 'application/json' }, body: JSON.stringify({ action: 'withdraw', amount: 10, bank_code: '058', account_number: '0123456789' }) });
  await until(() => sandbox.requests.ofKey('k') > 0);
  const t = performance.now();
  const ended = g.end();
  const a = await p;
  console.log(a.status, a.headers, performance.now() - t);
  console.log(await ended, performance.now() - t);
  await sandbox.close();
});
