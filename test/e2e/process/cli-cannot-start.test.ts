import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { listen } from '../../../src/kernel/listen.ts';
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

describe('a port that is taken', () => {
  let taken: Server;
  let port: number;
  beforeAll(async () => {
    taken = createServer();
    port = await listen(taken as never, '127.0.0.1', 0);
  });
  afterAll(() => new Promise((resolve) => taken.close(resolve)));

  const busy = () => new RegExp(`^oncegate: port ${port} on 127\\.0\\.0\\.1 is in use`);

  it.concurrent.each([1, 2])('the merchants’ port, %i workers', async (workers) => {
    const ended = await serve({ workers, listen: { host: '127.0.0.1', port } });
    expect(ended.code).toBe(1);
    expectOneLine(ended, busy());
  });

  it.concurrent.each([1, 2])('the admin port, %i workers', async (workers) => {
    const ended = await serve({ workers, admin: { host: '127.0.0.1', port } });
    expect(ended.code).toBe(1);
    expectOneLine(ended, busy());
  });

  it.concurrent.each(['--port', '--admin-port', '--sandbox-port'])('start %s', async (option) => {
    const free = ['--port=0', '--admin-port=0', '--sandbox-port=0', `--data=${newFolder()}`];
    const ended = await run(['start', ...free, `${option}=${port}`]);
    expect(ended.code).toBe(1);
    expectOneLine(ended, new RegExp(`\\b${port}\\b.* in use`));
    expect(ended.stdout).not.toContain('oncegate is ready');
  });
});

describe('a data folder that cannot be used', () => {
  const start = (path: string) =>
    run(['start', '--port=0', '--admin-port=0', '--sandbox-port=0', `--data=${path}`]);
  const serveOn = (path: string) => serve({ store: { kind: 'sqlite', path } });
  const file = () => write().file;

  it.concurrent.each([
    ['start, below a file', start, () => join(file(), 'data'), 'gateway.yaml'],
    ['serve, below a file', serveOn, () => join(file(), 'data'), 'gateway.yaml'],
    ['start, in /proc', start, () => '/proc/oncegate-data', '/proc/oncegate-data'],
    ['serve, in place of a file', serveOn, file, 'gateway.yaml'],
  ])('%s', async (_, command, pathOf, named) => {
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
  ])('%s, with the store of an earlier version in it', async (_, ended) => {
    const path = newFolder();
    for (const file of ['data.mdb', 'lock.mdb']) writeFileSync(join(path, file), 'an LMDB store');
    const { code, ...said } = await ended(path);
    expect([1, 69]).toContain(code);
    const help =
      'holds an LMDB store, which this version cannot read: move the folder away, or configure another';
    expectOneLine({ code, ...said }, `${path} ${help} store.path`);
    // It is left as it was, and no new store is made beside it.
    expect(readFileSync(join(path, 'data.mdb'), 'utf8')).toBe('an LMDB store');
    expect(existsSync(join(path, 'records.db'))).toBe(false);
  });

  it.concurrent('but a folder with a dot in its name can', async () => {
    const path = join(newFolder(), 'records.v1');
    const ended = await run(['check', '--config', write({ store: { kind: 'sqlite', path } }).file]);
    expect(ended.stdout).toContain('ok   store: ');
    expect(ended.stderr).toBe('oncegate: not ready: upstream\n');
  });
});

describe('a key file that cannot be used', () => {
  it.concurrent('is missing', async () => {
    const path = join(newFolder(), 'nokeys.yaml');
    const ended = await serve({ auth: { keys: { source: 'file', path } } });
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toContain(path);
    expect(ended.stderr).toContain('ENOENT');
  });

  it.concurrent('has a secret in the wrong place', async () => {
    const path = join(newFolder(), 'keys.yaml');
    writeFileSync(path, stringify({ merchants: [{ code: 'M-1', keys: [{ id: 'a', hash: SECRET }] }] }));
    const ended = await serve({ auth: { keys: { source: 'file', path } } });
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toContain('merchants[0].keys[0].hash');
    expect(ended.stderr).not.toContain(SECRET);
  });

  it.concurrent('has hashes, and there is no pepper', async () => {
    const path = join(newFolder(), 'keys.yaml');
    const hash = `hmac-sha256:${'0'.repeat(64)}`;
    writeFileSync(path, stringify({ merchants: [{ code: 'M-1', keys: [{ id: 'a', hash }] }] }));
    const ended = await serve({ auth: { keys: { source: 'file', path } } });
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toMatch(/pepper/);
  });
});

describe('a Redis that cannot be used', () => {
  const within = (url: string, more: MoreConfig = {}) =>
    serve({ store: { kind: 'redis', url, connectTimeoutMs: 500 }, ...more });

  it.concurrent.each([1, 2])('is not there, %i workers', async (workers) => {
    const port = await freePort();
    const ended = await within(`redis://user:${SECRET}@127.0.0.1:${port}`, { workers });
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis cannot be reached: .*ECONNREFUSED/);
    expect(ended.stderr).not.toContain(SECRET);
    // Its 500 ms, and the time to start and end as many processes.
    expect(ended.elapsedMs).toBeLessThan(15_000);
  });

  it.concurrent('stands still', async () => {
    const redis = await startRedis();
    redis.freeze();
    const ended = await within(redis.url);
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis cannot be reached: /);
    expect(ended.elapsedMs).toBeLessThan(15_000);
  });

  it.concurrent('wants another password', async () => {
    const redis = await startRedis({ args: ['--requirepass', 'another'] });
    const ended = await within(redis.url.replace('redis://', `redis://:${SECRET}@`));
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis .*WRONGPASS/);
    expect(ended.stderr).not.toContain(SECRET);
  });

  it.concurrent('evicts', async () => {
    const redis = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
    const ended = await within(redis.url);
    expect(ended.code).toBe(69);
    expectOneLine(ended, /^oncegate: redis has maxmemory-policy allkeys-lru/);
  });
});
