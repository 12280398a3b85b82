import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { type Ended, expectPlain, newFolder, run } from '../../support/command.ts';
import { type MoreConfig, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { startRedis } from '../../support/redis-server.ts';
import { onRedis } from '../../support/stores.ts';
import { openSandbox } from './gateways.ts';

const sandbox = await openSandbox();

interface Checked {
  upstreamUrl?: string;
  /** Members that are added to each secret key. */
  keys?: object[];
  args?: string[];
}

function check(more: MoreConfig = {}, { upstreamUrl = sandbox.url, keys = [{}], args = [] }: Checked = {}) {
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  const config = testConfig(folder, upstreamUrl, more);
  const items = keys.map((key, i) => ({ id: `k${i}`, dangerouslyPlainSecret: `sk_check_${i}`, ...key }));
  writeFileSync(join(folder, 'keys.yaml'), stringify({ merchants: [{ code: 'M-1', keys: items }] }));
  writeFileSync(file, stringify(config));
  return run(['check', '--config', file, ...args]);
}

const warningsIn = ({ stdout }: Ended) => stdout.split('\n').filter((line) => line.startsWith('warn'));

describe('check', () => {
  it.concurrent('prints one line for each check that passed', async () => {
    const ended = await check();
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^ok {3}store: .+\nok {3}upstream: .+\nok {3}keys: 1 key from .+\n$/);
    expect(ended.stdout).not.toMatch(/sk_check/);
  });

  it.concurrent('fails if the backend cannot be reached, and prints the reason', async () => {
    const ended = await check({}, { upstreamUrl: `http://127.0.0.1:${await freePort()}` });
    expect(ended.code).toBe(1);
    expect(ended.stdout).toMatch(/^ok {3}store: .+\nFAIL upstream: .*ECONNREFUSED.*\nok {3}keys: .+\n$/);
    expect(ended.stderr).toBe('oncegate: not ready: upstream\n');
  });

  it.concurrent('warns of ports that are in use', async () => {
    const port = Number(new URL(sandbox.url).port);
    const free = await freePort();
    const taken = { host: '127.0.0.1', port };
    const [merchants, admin, neither] = await Promise.all([
      check({ listen: taken, workers: 2 }),
      check({ admin: taken }),
      check({
        listen: { host: '127.0.0.1', port: free },
        admin: { host: '127.0.0.1', port: await freePort() },
      }),
    ]);
    for (const ended of [merchants, admin, neither]) expect(ended).toMatchObject({ code: 0, stderr: '' });
    const why = `port ${port} on 127.0.0.1 is in use, by a running gateway or another process`;
    expect([merchants, admin, neither].map(warningsIn)).toEqual([
      [`warn listen: ${why}`],
      [`warn admin: ${why}`],
      [],
    ]);
  });

  it.concurrent('warns of addresses that cannot be used, and of one port for both servers', async () => {
    const port = await freePort();
    const both = await check({ listen: { host: '127.0.0.1', port }, admin: { host: '127.0.0.1', port } });
    expect(both.code).toBe(0);
    expect(warningsIn(both)).toEqual([expect.stringMatching(`^warn admin: port ${port} .* is in use`)]);
    // RFC 5737 reserves this address for documentation, so no machine has it.
    const foreign = await check({ listen: { host: '192.0.2.1', port } });
    expect(foreign.code).toBe(0);
    expect(warningsIn(foreign)).toEqual([
      `warn listen: port ${port} on 192.0.2.1 cannot be used: EADDRNOTAVAIL`,
    ]);
  });

  it.concurrent('warns of keys that have expired or will expire soon, and of unknown scopes', async () => {
    const soon = new Date(Date.now() + 86_400_000).toISOString();
    const keys = [
      {},
      { expiresAt: '2020-01-01T00:00:00Z' },
      { expiresAt: soon },
      { scopes: ['withdrw', 'other'] },
    ];
    const ended = await check({}, { keys });
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(warningsIn(ended)).toEqual([
      'warn keys: expired: M-1/k1',
      `warn keys: expires within 30 days: M-1/k2 (${soon})`,
      'warn keys: no operation has the scope "withdrw": M-1/k3',
    ]);
  });

  it.concurrent('warns if there are no keys', async () => {
    const ended = await check({}, { keys: [] });
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(warningsIn(ended)).toEqual(['warn keys: there are no secret keys: every request gets 401']);
  });

  it.concurrent('prints one document with --json, whatever it finds', async () => {
    const documents = await Promise.all([
      check({}, { args: ['--json'], keys: [{ expiresAt: '2020-01-01T00:00:00Z' }, {}] }),
      check({}, { args: ['--json', '--offline'], keys: [{ scopes: [] }] }),
      check({}, { args: ['--json'], upstreamUrl: `http://127.0.0.1:${await freePort()}` }),
    ]);
    expect(documents.map(({ code }) => code)).toEqual([0, 1, 1]);
    const [warned, broken, notReady] = documents.map(({ stdout }) => JSON.parse(stdout));
    expect(warned).toEqual({
      ok: true,
      checks: ['store', 'upstream', 'keys'].map((name) => ({
        name,
        result: 'ok',
        detail: expect.any(String),
      })),
      warnings: ['keys: expired: M-1/k0'],
      mistakes: [],
      upgrade: {
        version: expect.stringMatching(/^\d+\.\d+\.\d+$/),
        store: {
          ...{ format: 2, writes: 2, change: 'new', lastUsedBy: null },
          ...{ detail: 'no gateway has used it yet', needsAttention: false },
        },
        options: [],
      },
    });
    expect(broken).toMatchObject({
      ...{ ok: false, checks: [], warnings: [] },
      mistakes: [
        expect.stringContaining('the key file'),
        expect.stringContaining('merchants[0].keys[0].scopes: must name an operation'),
      ],
    });
    expect(notReady).toMatchObject({ ok: false, mistakes: [] });
    expect(notReady.checks).toContainEqual({
      ...{ name: 'upstream', result: 'failed' },
      detail: expect.stringContaining('ECONNREFUSED'),
    });
  });

  it.concurrent('finds what makes a start or a payout unsafe, and fails then with --strict', async () => {
    const pay = { name: 'pay', match: { method: 'POST', path: '/v1/payments/:id' } };
    const unprotected = { ...pay, idempotency: { key: 'none' as const } };
    const hidden = { name: 'refund', match: { method: 'POST', path: '/v1/payments/refund' } };
    const cases: [found: RegExp, code: number, more: MoreConfig, keys?: object[]][] = [
      [/keys: expired: M-1\/k0/, 1, {}, [{ expiresAt: '2020-01-01T00:00:00Z' }, {}]],
      [/keys: no operation has the scope "withdrw": M-1\/k0/, 1, {}, [{ scopes: ['withdrw'] }]],
      [/operations: pay has key: none: a key does not protect/, 1, { operations: [unprotected] }],
      [/operations\[1\]\.match: .* "pay" matches first/, 78, { operations: [pay, hidden] }],
      [
        /idempotency\.retentionMs: .* longer than an execution can take/,
        78,
        { idempotency: { retentionMs: 1000 } },
      ],
      [
        /admin\.token: is required when admin\.host is not a loopback/,
        78,
        { admin: { host: '0.0.0.0', port: 0 } },
      ],
    ];
    await Promise.all(
      cases.map(async ([found, code, more, keys]) => {
        const args = ['--offline', '--json', '--strict'];
        const ended = await check(more, { args, ...(keys && { keys }) });
        const { ok, warnings, mistakes } = JSON.parse(ended.stdout);
        expect({ ok, code: ended.code, lines: [...warnings, ...mistakes] }).toEqual({
          ...{ ok: false, code },
          lines: [expect.stringMatching(found)],
        });
      }),
    );
    expect(await check({}, { args: ['--strict', '--offline'] })).toMatchObject({ code: 0, stderr: '' });
  });

  it.concurrent('fails with a Redis that evicts', async () => {
    const redis = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
    const ended = await check(onRedis(redis), { args: ['--json'] });
    expect(ended.code).toBe(1);
    expect(JSON.parse(ended.stdout)).toMatchObject({
      ok: false,
      mistakes: [expect.stringMatching(/maxmemory-policy/)],
    });
  });

  it.concurrent('skips store, backend and ports with --offline, and prints that', async () => {
    const nowhere = `redis://127.0.0.1:${await freePort()}`;
    const port = Number(new URL(sandbox.url).port);
    const more = { store: { kind: 'redis' as const, url: nowhere }, listen: { host: '127.0.0.1', port } };
    const offline = {
      upstreamUrl: 'http://127.0.0.1:1',
      args: ['--offline'],
      keys: [{ scopes: ['withdrw'] }],
    };
    const ended = await check(more, offline);
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout.replace(/ from .+/, '')).toBe(
      [
        'ok   keys: 1 key',
        'warn keys: no operation has the scope "withdrw": M-1/k0',
        'skip store: not checked (--offline)',
        'skip upstream: not checked (--offline)',
        'skip ports: not checked (--offline)',
        '',
      ].join('\n'),
    );
  });

  it.concurrent('finds mistakes in the key file also with --offline, and creates no store', async () => {
    const folder = newFolder();
    const ended = await check(
      { store: { kind: 'sqlite', path: join(folder, 'data') } },
      { args: ['--offline'], keys: [{ scopes: [] }] },
    );
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toContain('merchants[0].keys[0].scopes: must name an operation');
    expect(existsSync(join(folder, 'data'))).toBe(false);
  });

  it.concurrent('does not warn of a durable Redis', async () => {
    const redis = await startRedis();
    const ended = await check(onRedis(redis));
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^ok {3}store: redis\n/);
    expect(ended.stdout).not.toMatch(/^warn/m);
  });

  it.concurrent('warns of a Redis without appendonly', async () => {
    const redis = await startRedis({ appendonly: false });
    const ended = await check(onRedis(redis));
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^ok {3}store: redis\n/);
    expect(warningsIn(ended)).toEqual([
      expect.stringMatching(/^warn store: redis runs without appendonly: ./),
    ]);
  });

  it.concurrent('warns of an operation with inDoubt: retry', async () => {
    const match = { method: 'POST', path: '/v1/pay' };
    const ended = await check({
      operations: [{ name: 'pay', match, idempotency: { key: 'optional', inDoubt: 'retry' } }],
    });
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^warn operations: pay has inDoubt: retry: .*pays twice/m);
  });

  it.concurrent('warns of mode: observe, also with --offline', async () => {
    const ended = await check({ idempotency: { mode: 'observe' } }, { args: ['--offline'] });
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(warningsIn(ended)).toEqual([
      expect.stringMatching(
        /^warn operations: idempotency\.mode is observe: nothing is protected; .*pays twice$/,
      ),
    ]);
  });

  it.concurrent('fails if the store cannot be opened', async () => {
    const url = `redis://:hunter2@127.0.0.1:${await freePort()}`;
    const ended = await check({ store: { kind: 'redis', url, connectTimeoutMs: 300 } });
    // 69 is the exit code of serve. check exits with 1 for every failed check, as its help says.
    expect(ended.code).toBe(1);
    expectPlain(ended);
    expect(ended.stderr).toMatch(/redis cannot be reached/);
    expect(ended.stderr).not.toMatch(/hunter2/);
  });
});
