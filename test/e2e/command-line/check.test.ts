import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { stringify } from 'yaml';
import { readBalance, secretKeyOf } from '../../../src/cli/read-balance.ts';
import { httpBackend } from '../../support/backend.ts';
import { send } from '../../support/client.ts';
import { type Ended, expectPlain, newFolder, run } from '../../support/command.ts';
import {
  type ConfigInput,
  configFile,
  type MoreConfig,
  parsedConfig,
  testConfig,
} from '../../support/config.ts';
import { blocksOf } from '../../support/documents.ts';
import { freePort } from '../../support/free-port.ts';
import { openKeyBackend } from '../../support/key-backend.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openSandbox } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';

const sandbox = await openSandbox();
const inUse = { host: '127.0.0.1', port: Number(new URL(sandbox.url).port) };

interface Checked {
  upstreamUrl?: string;
  /** Members that are added to each secret key. */
  keys?: object[];
  args?: string[];
  folder?: string;
  /** The secret key for the balance, in the environment. */
  secret?: string;
}

function check(
  more: MoreConfig = {},
  { upstreamUrl = sandbox.url, keys = [{}], args = [], folder = newFolder(), secret = '' }: Checked = {},
) {
  const file = configFile(testConfig(folder, upstreamUrl, more), folder);
  const items = keys.map((key, i) => ({ id: `k${i}`, dangerouslyPlainSecret: `sk_check_${i}`, ...key }));
  writeFileSync(join(folder, 'keys.yaml'), stringify({ merchants: [{ code: 'M-1', keys: items }] }));
  return run(['check', '--config', file, ...args], { env: { ONCEGATE_SECRET_KEY: secret } });
}

const SKIPPED =
  'skip balance: not read: with --secret-key-file FILE or ONCEGATE_SECRET_KEY, as a merchant would\n';

const warningsIn = ({ stdout }: Ended) => stdout.split('\n').filter((line) => line.startsWith('warn'));

/** A proxy that repeats a POST without an answer, or with 503, as many times. */
async function repeatingProxy(target: string, times: number): Promise<string> {
  return await httpBackend(async ({ method = '', url = '', headers }, res) => {
    const { 'x-oncegate-delivery': marker = '' } = headers;
    for (let tries = 0; ; tries++) {
      const isLast = tries === times || method !== 'POST';
      try {
        const answer = await send(target, { method, path: url, headers: { 'x-oncegate-delivery': marker } });
        if (answer.status === 503 && !isLast) continue;
        res.writeHead(answer.status).end(answer.body);
        return;
      } catch {
        if (!isLast) continue;
        res.destroy();
        return;
      }
    }
  });
}

describe('check --deliver', () => {
  const PATH = '/_sandbox/deliveries';
  it('sends a POST through the proxies in front of the backend, and fails if it arrives twice', async () => {
    const through = async (upstreamUrl: string, path = PATH) =>
      await check({}, { upstreamUrl, args: ['--deliver', path] });
    for (const url of [sandbox.url, await repeatingProxy(sandbox.url, 0)]) {
      const once = await through(url);
      expect([once.code, once.stdout]).toEqual([
        0,
        expect.stringMatching(/^ok {3}deliver: a POST arrives once/m),
      ]);
    }
    const repeated = await through(await repeatingProxy(sandbox.url, 2));
    expect([repeated.code, repeated.stderr]).toEqual([1, 'oncegate: not ready: deliver\n']);
    expect(repeated.stdout).toMatch(
      /^FAIL deliver: a POST that the backend ends by a reset arrived 3 times/m,
    );
    const uncounted = await through(sandbox.url, '/v2/get_balance');
    expect(uncounted.stdout).toMatch(
      /^FAIL deliver: GET \S+ does not say how often .* arrived \(status 401\)/m,
    );
    expect((await check({}, { args: ['--deliver', '/a?b'] })).code).toBe(64);
  });
});

describe('check', () => {
  it('prints a line for each check, and fails with the names of those that failed', async () => {
    const ok = await check();
    expect(ok).toMatchObject({ code: 0, stderr: '' });
    expect(ok.stdout.replaceAll(/\/\S+\//g, '')).toBe(
      `ok   store: sqlite (data)\nok   upstream: reachable (${sandbox.url})\nok   keys: 1 key from keys.yaml\n${SKIPPED}`,
    );
    expect(ok.stdout).not.toMatch(/sk_check/);
    const away = `http://127.0.0.1:${await freePort()}`;
    const failed = await check({}, { upstreamUrl: away });
    expect(failed).toMatchObject({ code: 1, stderr: 'oncegate: not ready: upstream\n' });
    expect(failed.stdout).toContain(`\nFAIL upstream: ECONNREFUSED (${away})\nok   keys: `);
    // A folder may have a dot in its name.
    const dotted = { kind: 'sqlite' as const, path: join(newFolder(), 'records.v1') };
    expect((await check({ store: dotted })).code).toBe(0);
  });

  it('warns of ports and addresses that cannot be used, and of one port for both servers', async () => {
    const [one, two] = [await freePort(), await freePort()];
    const at = (port: number) => ({ host: '127.0.0.1', port });
    const isInUse = `port ${inUse.port} on 127.0.0.1 is in use, by a running gateway or another process`;
    const cases: [more: MoreConfig, ...warnings: unknown[]][] = [
      [{ listen: inUse }, `warn listen: ${isInUse} (listen.port)`],
      [{ admin: inUse }, `warn admin: ${isInUse} (admin.port)`],
      [{ listen: at(one), admin: at(two) }],
      [{ listen: at(one), admin: at(one) }, expect.stringMatching(`^warn admin: port ${one} .* is in use`)],
      // RFC 5737 reserves this address for documentation, so no machine has it.
      [
        { listen: { host: '192.0.2.1', port: one } },
        `warn listen: port ${one} on 192.0.2.1 cannot be used: EADDRNOTAVAIL (listen.port)`,
      ],
    ];
    for (const [more, ...warnings] of cases) {
      const ended = await check(more);
      expect(ended).toMatchObject({ code: 0, stderr: '' });
      expect(warningsIn(ended)).toEqual(warnings);
    }
  });

  it('warns of keys and operations that need attention, and fails then with --strict', async () => {
    const keys = [{}, { expiresAt: '2020-01-01T00:00:00Z' }, { scopes: ['withdrw', 'other'] }];
    const idempotency = { key: 'optional', inDoubt: 'retry' } as const;
    const retried = { name: 'pay', match: { method: 'POST', path: '/v1/pay' }, idempotency };
    for (const args of [[], ['--offline'], ['--offline', '--strict']]) {
      const ended = await check({ operations: [retried] }, { keys, args });
      const [code, stderr] = args.includes('--strict') ? [1, 'oncegate: warnings: 3 (--strict)\n'] : [0, ''];
      expect(ended).toMatchObject({ code, stderr });
      expect(warningsIn(ended)).toEqual([
        expect.stringMatching(/^warn operations: pay has inDoubt: retry: .*pays twice, unless/),
        'warn keys: expired: M-1/k1',
        'warn keys: no operation has the scope "withdrw": M-1/k2',
      ]);
    }
    expect(await check({}, { args: ['--strict'] })).toMatchObject({ code: 0, stderr: '' });
  });

  it('prints one document with --json, whatever it finds', async () => {
    const args = ['--json'];
    const documents = [
      await check({}, { args, keys: [{ expiresAt: '2020-01-01T00:00:00Z' }, {}] }),
      await check({}, { args: ['--json', '--offline'], keys: [{ scopes: [] }] }),
      await check({}, { args, upstreamUrl: `http://127.0.0.1:${await freePort()}` }),
    ];
    expect(documents.map(({ code }) => code)).toEqual([0, 1, 1]);
    const [warned, broken, notReady] = documents.map(({ stdout }) => JSON.parse(stdout));
    expect(warned).toEqual({
      ok: true,
      checks: ['store', 'upstream', 'keys', 'balance'].map((name) => ({
        ...{ name, result: name === 'balance' ? 'skipped' : 'ok', detail: expect.any(String) },
      })),
      warnings: ['keys: expired: M-1/k0'],
      mistakes: [],
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

  it('skips store, backend and ports with --offline, and prints that', async () => {
    const nowhere = `redis://127.0.0.1:${await freePort()}`;
    const more = { store: { kind: 'redis' as const, url: nowhere }, listen: inUse };
    const args = ['--offline'];
    const ended = await check(more, { upstreamUrl: 'http://127.0.0.1:1', args });
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout.replace(/ from .+/, '').split('\n')).toEqual([
      'ok   keys: 1 key',
      ...['store', 'upstream', 'ports'].map((name) => `skip ${name}: not checked (--offline)`),
      '',
    ]);
    const folder = newFolder();
    const broken = await check({}, { args, keys: [{ scopes: [] }], folder });
    expect(broken.code).toBe(1);
    expectPlain(broken);
    expect(broken.stderr).toContain('merchants[0].keys[0].scopes: must name an operation');
    expect(existsSync(join(folder, 'data'))).toBe(false);
  });

  it('asks a Redis for its settings', async () => {
    const weak = onRedis(await startRedis({ appendonly: false }));
    const ended = await check(weak);
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    expect(ended.stdout).toMatch(/^ok {3}store: redis \(redis:\/\/127\.0\.0\.1:\d+\)\n/);
    expect(warningsIn(ended)).toEqual([
      expect.stringMatching(/^warn store: redis runs without appendonly: ./),
    ]);
    // 69 is the exit code of serve. check exits with 1 for every failed check, as its help says.
    const url = `redis://:hunter2@127.0.0.1:${await freePort()}`;
    const store = { kind: 'redis' as const, url, connectTimeoutMs: 300 };
    const away = await check({ store }, { keys: [{ expiresAt: '2020-01-01T00:00:00Z' }, {}] });
    expect(away).toMatchObject({ code: 1, stderr: 'oncegate: not ready: store\n' });
    const [failed, ...others] = away.stdout.split('\n');
    expect(failed).toMatch(
      /^FAIL store: redis cannot be reached: .*ECONNREFUSED.* \(redis:\/\/:masked@127\.0\.0\.1:\d+\)$/,
    );
    // Everything else is checked.
    expect(others.map((line) => line.slice(0, 14))).toEqual([
      ...['ok   upstream:', 'ok   keys: 2 k', 'warn keys: exp', 'skip balance: ', ''],
    ]);
    expect(away.stdout).not.toMatch(/hunter2/);
    const folder = newFolder();
    vi.stubEnv('TMPDIR', '/nowhere');
    onTestFinished(() => void vi.unstubAllEnvs());
    // It has no place for a store to check the rest with.
    expect((await check({ store }, { folder })).stderr).toMatch(/^oncegate: redis cannot be reached: /);
  });

  it('tries a key that nobody has, and warns if the backend does not refuse it', async () => {
    const auth = { keys: { source: 'upstream' } } as const;
    const keysLines = async (upstreamUrl: string, ...args: string[]) => {
      const { code, stdout } = await check({ auth }, { upstreamUrl, args });
      expect(code).toBe(0);
      return stdout.split('\n').filter((line) => line.includes('keys: '));
    };
    const asks = 'GET /v2/get_balance';
    const ok = `ok   keys: no key list: the backend is asked with ${asks}, and 0 keys are known`;
    expect(await keysLines(sandbox.url)).toEqual([ok]);
    const backend = await openKeyBackend();
    backend.keys.get = () => 'M-1';
    const any = `warn keys: ${asks} accepts ANY secret key: everyone who calls the gateway is M-1`;
    expect(await keysLines(backend.url)).toEqual([ok, any]);
    backend.answer = (res) => res.writeHead(404).end();
    const status = `warn keys: ${asks} must answer 401 or 403 to an invalid secret key: GET answered 404`;
    expect(await keysLines(backend.url)).toEqual([ok, status]);
    expect(await keysLines(backend.url, '--offline')).toEqual(['skip keys: not checked (--offline)']);
  });

  it('reads the balance with a real secret key as the gateway does, and names the option that repairs a 401', async () => {
    const got: (string | string[] | undefined)[][] = [];
    const ofGateway = 'Bearer of-the-gateway';
    const upstreamUrl = await httpBackend(({ method, url, headers }, res) => {
      got.push([method, url, headers.authorization, headers['x-merchant-code']]);
      res.writeHead(headers.authorization === ofGateway ? 200 : 401).end('{}');
    });
    const whole = await check({}, { upstreamUrl, secret: 'sk_check_0' });
    expect(whole).toMatchObject({ code: 1, stderr: 'oncegate: not ready: balance\n' });
    const asked = 'GET /v2/get_balance for the merchant M-1: status';
    const [{ text = '' } = {}] = blocksOf('docs/backend.md', 'Check it');
    const [, shown = ''] = text.replace('M-1001', 'M-1').split('\n');
    expect(shown).toContain(`${asked} 401: it got the secret key of the merchant (auth.forward: keep) and`);
    expect(whole.stdout.split('\n')).toContain(shown);
    expect(whole.stdout).not.toMatch(/sk_check/);

    const path = join(newFolder(), 'keys.yaml');
    const old = { id: 'old', dangerouslyPlainSecret: 'sk_old', expiresAt: '2020-01-01T00:00:00Z' };
    const items = [{ id: 'k', dangerouslyPlainSecret: 'sk_check_0' }, old];
    writeFileSync(path, stringify({ merchants: [{ code: 'M-1', keys: items }] }));
    const read = async (auth: MoreConfig['auth'], secret = 'sk_check_0') => {
      const config = { upstream: { url: upstreamUrl }, auth: { keys: { source: 'file', path }, ...auth } };
      const { ok, detail } = await readBalance(parsedConfig(config as ConfigInput), secret);
      expect(detail).not.toMatch(/sk_|of-the-gateway/);
      return `${ok} ${detail}`;
    };
    expect(await read({ forward: 'strip' })).toMatch(
      /^false .* 401: it got no Authorization .*forward: keep; /,
    );
    const wrong = await read({ forward: 'replace', replaceWith: 'Bearer another-of-the-gateway' });
    expect(wrong).toMatch(/^false .* 401: it does not accept auth.replaceWith/);
    expect(await read({ forward: 'replace', replaceWith: ofGateway })).toBe(`true ${asked} 200`);
    const sent = ['Bearer sk_check_0', undefined, 'Bearer another-of-the-gateway', ofGateway];
    expect(got).toEqual(sent.map((value) => ['GET', '/v2/get_balance', value, 'M-1']));
    expect(await read({}, 'sk_of_nobody')).toBe(
      `false the secret key is not in ${path}: oncegate keys import adds it`,
    );
    expect(await read({}, 'sk_old')).toMatch(/ old of the merchant M-1, and is not in force$/);
    expect(got).toHaveLength(4);

    const ofBackend = { upstream: { url: sandbox.url }, auth: { keys: { source: 'upstream' as const } } };
    const known = await readBalance(parsedConfig(ofBackend), 'sk_sandbox_alpha');
    expect(known).toEqual({ ok: true, detail: asked.replace('M-1', 'M-ALPHA').replace(/$/, ' 200') });
    expect(await readBalance(parsedConfig(ofBackend), 'sk_of_nobody')).toEqual({
      ...{ ok: false, detail: 'GET /v2/get_balance: the backend says that the secret key is invalid' },
    });
  });

  it('takes a secret key from a file or from the environment', async () => {
    const file = join(newFolder(), 'secret');
    writeFileSync(file, 'sk_in_a_file\n');
    const env = { ONCEGATE_SECRET_KEY: 'sk_of_the_environment' };
    expect(await secretKeyOf(file, env)).toBe('sk_in_a_file');
    expect(await secretKeyOf(undefined, env)).toBe('sk_of_the_environment');
    expect(await secretKeyOf(undefined, {})).toBeUndefined();
    await expect(secretKeyOf(`${file}.none`, {})).rejects.toThrow(/none cannot be read \(ENOENT\)$/);
    expect((await check({}, { args: ['--secret-key-file', file, '--offline'] })).code).toBe(64);
  });
});
