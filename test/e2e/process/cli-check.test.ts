import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { expectPlain, newFolder, run } from '../../support/command.ts';
import { type MoreConfig, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { startRedis } from '../../support/redis-server.ts';
import { onRedis } from '../../support/stores.ts';
import { openSandbox } from './gateways.ts';

const sandbox = await openSandbox();

function check(more: MoreConfig = {}, upstreamUrl = sandbox.url) {
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(testConfig(folder, upstreamUrl, more)));
  return run(['check', '--config', file]);
}

describe('check', () => {
  it.concurrent('says what it looked at, when all is well', async () => {
    const ended = await check();
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^ok {3}store: .+\nok {3}upstream: .+\nok {3}keys: 8 keys from .+\n$/);
    expect(ended.stdout).not.toMatch(/sk_sandbox/);
  });

  it.concurrent('fails where the backend cannot be reached, and names the reason', async () => {
    const ended = await check({}, `http://127.0.0.1:${await freePort()}`);
    expect(ended.code).toBe(1);
    expect(ended.stdout).toMatch(/^ok {3}store: .+\nFAIL upstream: .*ECONNREFUSED.*\nok {3}keys: .+\n$/);
    expect(ended.stderr).toBe('oncegate: not ready: upstream\n');
  });

  it.concurrent('does not serve, and takes no port', async () => {
    const port = Number(new URL(sandbox.url).port);
    expect(await check({ listen: { host: '127.0.0.1', port }, workers: 2 })).toMatchObject({ code: 0 });
  });

  it.concurrent('has nothing to say against a Redis that keeps its records', async () => {
    const redis = await startRedis();
    const ended = await check(onRedis(redis));
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^ok {3}store: redis\n/);
    expect(ended.stdout).not.toMatch(/^warn/m);
  });

  it.concurrent('warns of a Redis that does not keep them', async () => {
    const redis = await startRedis({ appendonly: false });
    const ended = await check(onRedis(redis));
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^ok {3}store: redis\nwarn store: redis runs without appendonly: .+\n/);
  });

  it.concurrent('warns of an operation that sends again what may have been executed', async () => {
    const match = { method: 'POST', path: '/v1/pay' };
    const ended = await check({
      operations: [{ name: 'pay', match, idempotency: { key: 'optional', inDoubt: 'retry' } }],
    });
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^warn operations: pay has inDoubt: retry: .*pays twice/m);
  });

  it.concurrent('fails where the store cannot be opened', async () => {
    const url = `redis://:hunter2@127.0.0.1:${await freePort()}`;
    const ended = await check({ store: { kind: 'redis', url, connectTimeoutMs: 300 } });
    // Its own help: 1 when something is not well, 78 for the configuration.
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toMatch(/redis cannot be reached/);
    expect(ended.stderr).not.toMatch(/hunter2/);
  });
});
