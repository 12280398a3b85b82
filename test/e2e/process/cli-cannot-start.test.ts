import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { listen } from '../../../src/gateway/http-server.ts';
import { type Ended, expectPlain, newFolder, run } from '../../support/command.ts';
import { type MoreConfig, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { startRedis } from '../../support/redis-server.ts';

const SECRET = 'hunter2-hunter2-hunter2';

function write(more: MoreConfig = {}): { file: string; folder: string } {
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(testConfig(folder, 'http://127.0.0.1:9', more)));
  return { file, folder };
}

const serve = (more: MoreConfig = {}) => run(['serve', '--config', write(more).file]);

function expectOneLine(ended: Ended, line: RegExp | string): void {
  expect(ended.stderr).toMatch(line);
  expect(ended.stderr.split('\n')).toHaveLength(2);
  expectPlain(ended);
}

describe('a port that is in use', () => {
  let other: Server;
  let port: number;
  beforeAll(async () => {
    other = createServer();
    port = await listen(other, '127.0.0.1', 0);
  });
  afterAll(() => new Promise((resolve) => other.close(resolve)));

  const inUse = () => new RegExp(`^oncegate: port ${port} on 127\\.0\\.0\\.1 is in use`);

  it.concurrent.each([1, 2])('is named if it is the port for merchants, with %i workers', async (workers) => {
    const ended = await serve({ workers, listen: { host: '127.0.0.1', port } });
    expect(ended.code).toBe(1);
    expectOneLine(ended, inUse());
  });

  it.concurrent.each([1, 2])('is named if it is the admin port, with %i workers', async (workers) => {
    const ended = await serve({ workers, admin: { host: '127.0.0.1', port } });
    expect(ended.code).toBe(1);
    expectOneLine(ended, inUse());
  });

  it.concurrent.each(['--port', '--admin-port', '--sandbox-port'])(
    'is named if it is the %s of start',
    async (option) => {
      const free = ['--port=0', '--admin-port=0', '--sandbox-port=0', `--data=${newFolder()}`];
      const ended = await run(['start', ...free, `${option}=${port}`]);
      expect(ended.code).toBe(1);
      expectOneLine(ended, new RegExp(`\\b${port}\\b.* in use`));
      expect(ended.stdout).not.toContain('oncegate is ready');
    },
  );
});

describe('a data folder that cannot be used', () => {
  const start = (path: string) =>
    run(['start', '--port=0', '--admin-port=0', '--sandbox-port=0', `--data=${path}`]);
  const serveOn = (path: string) => serve({ store: { kind: 'sqlite', path } });
  const file = () => write().file;

  it.concurrent.each([
    ['start, in a folder below a file', start, () => join(file(), 'data'), 'gateway.yaml'],
    ['serve, in a folder below a file', serveOn, () => join(file(), 'data'), 'gateway.yaml'],
    ['start, in /proc', start, () => '/proc/oncegate-data', '/proc/oncegate-data'],
    ['serve, with a file in place of the folder', serveOn, file, 'gateway.yaml'],
  ])('is named: %s', async (_, command, pathOf, named) => {
    const ended = await command(pathOf());
    expect([1, 69]).toContain(ended.code);
    expectOneLine(ended, named);
  });

  it.concurrent.each([
    ['serve', serveOn],
    ['start', start],
    ['check', (path: string) => run(['check', '--config', write({ store: { kind: 'sqlite', path } }).file])],
    [
      'records list',
      (path: string) => run(['records', 'list', '--config', write({ store: { kind: 'sqlite', path } }).file]),
    ],
  ])('because it has the store of an earlier version is named, and stays as it is: %s', async (_, runOn) => {
    const path = newFolder();
    for (const file of ['data.mdb', 'lock.mdb']) writeFileSync(join(path, file), 'an LMDB store');
    const ended = await runOn(path);
    expect([1, 69]).toContain(ended.code);
    const help =
      'holds an LMDB store, which this version cannot read: move the folder away, or configure another';
    expectOneLine(ended, `${path} ${help} store.path`);
    expect(readFileSync(join(path, 'data.mdb'), 'utf8')).toBe('an LMDB store');
    expect(existsSync(join(path, 'records.db'))).toBe(false);
  });
});

describe('a data folder', () => {
  it.concurrent('can have a dot in its name', async () => {
    const path = join(newFolder(), 'records.v1');
    const ended = await run(['check', '--config', write({ store: { kind: 'sqlite', path } }).file]);
    expect(ended.stdout).toContain('ok   store: ');
    expect(ended.stderr).toBe('oncegate: not ready: upstream\n');
  });
});

describe('a key file that cannot be used is named', () => {
  it.concurrent('if it does not exist', async () => {
    const path = join(newFolder(), 'nokeys.yaml');
    const ended = await serve({ auth: { keys: { source: 'file', path } } });
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toContain(path);
    expect(ended.stderr).toContain('ENOENT');
  });

  it.concurrent('without the secret that is in the place of a hash', async () => {
    const path = join(newFolder(), 'keys.yaml');
    writeFileSync(path, stringify({ merchants: [{ code: 'M-1', keys: [{ id: 'a', hash: SECRET }] }] }));
    const ended = await serve({ auth: { keys: { source: 'file', path } } });
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toContain('merchants[0].keys[0].hash');
    expect(ended.stderr).not.toContain(SECRET);
  });

  it.concurrent('if it has hashes and the configuration has no pepper', async () => {
    const path = join(newFolder(), 'keys.yaml');
    const hash = `hmac-sha256:${'0'.repeat(64)}`;
    writeFileSync(path, stringify({ merchants: [{ code: 'M-1', keys: [{ id: 'a', hash }] }] }));
    const ended = await serve({ auth: { keys: { source: 'file', path } } });
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toMatch(/pepper/);
  });
});

describe('a Redis that cannot be used ends the start', () => {
  const serveOn = (url: string, more: MoreConfig = {}, connectTimeoutMs = 500) =>
    serve({ store: { kind: 'redis', url, connectTimeoutMs }, ...more });

  it.concurrent.each([1, 2])('because it cannot be reached, with %i workers', async (workers) => {
    const port = await freePort();
    const ended = await serveOn(`redis://user:${SECRET}@127.0.0.1:${port}`, { workers });
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis cannot be reached: .*ECONNREFUSED/);
    expect(ended.stderr).not.toContain(SECRET);
    // The 500 ms of connectTimeoutMs, and the time to start and end the processes.
    expect(ended.elapsedMs).toBeLessThan(15_000);
  });

  it.concurrent('because it is paused', async () => {
    const redis = await startRedis();
    redis.freeze();
    const ended = await serveOn(redis.url);
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis cannot be reached: /);
    expect(ended.elapsedMs).toBeLessThan(15_000);
  });

  it.concurrent('because it has another password', async () => {
    const redis = await startRedis({ args: ['--requirepass', 'another'] });
    const ended = await serveOn(redis.url.replace('redis://', `redis://:${SECRET}@`), {}, 5000);
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis .*WRONGPASS/);
    expect(ended.stderr).not.toContain(SECRET);
  });

  it.concurrent('because it evicts keys', async () => {
    const redis = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
    const ended = await serveOn(redis.url, {}, 5000);
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis has maxmemory-policy allkeys-lru/);
  });
});
