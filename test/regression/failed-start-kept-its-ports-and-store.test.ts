import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, test } from 'vitest';
import { startGateway } from '../../src/cli/serve.ts';
import { parsedConfig, temporaryFolder, testConfig } from '../support/config.ts';
import { freePort } from '../support/free-port.ts';
import { keptLog } from '../support/log-lines.ts';
import { startRedis } from '../support/redis-server.ts';
import { stackForTest } from '../support/stack.ts';
import { until } from '../support/until.ts';

test('a start whose port is taken closes its admin port', async () => {
  const { port, sandbox } = await stackForTest();
  const adminPort = await freePort();
  const config = testConfig(temporaryFolder(), sandbox.url, {
    listen: { host: '127.0.0.1', port },
    admin: { host: '127.0.0.1', port: adminPort },
  });
  const { logger } = keptLog();
  const starting = startGateway(parsedConfig(config), { env: {}, logger });
  await expect(starting).rejects.toThrow('EADDRINUSE');
  const [error] = await once(connect(adminPort, '127.0.0.1'), 'error');
  expect(error.code).toBe('ECONNREFUSED');
});

test('a start whose port is taken closes its connections to Redis', async () => {
  const { port, sandbox } = await stackForTest();
  const redis = await startRedis();
  const connections = async () =>
    String(await redis.admin.client('LIST'))
      .trim()
      .split('\n').length;
  const before = await connections();
  const config = testConfig(temporaryFolder(), sandbox.url, {
    listen: { host: '127.0.0.1', port },
    store: { kind: 'redis', url: redis.url },
  });
  const { logger } = keptLog();
  const starting = startGateway(parsedConfig(config), { env: {}, logger });
  await expect(starting).rejects.toThrow('EADDRINUSE');
  await until(async () => (await connections()) === before);
});
