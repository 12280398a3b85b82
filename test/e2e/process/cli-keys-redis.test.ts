import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send } from '../../support/client.ts';
import { expectPlain, newFolder } from '../../support/command.ts';
import { startRedis } from '../../support/redis-server.ts';
import { configFor, openSandbox, startGateway } from './gateways.ts';
import { keys, newKey, PEPPER } from './key-commands.ts';

const redis = await startRedis();
const sandbox = await openSandbox();
const ENV = { ONCEGATE_PEPPER: PEPPER };

/** A configuration with an empty list of its own. */
function newList({ url = redis.url, prefix = `test-${Math.random()}` } = {}) {
  const pepper = '$' + '{ONCEGATE_PEPPER}';
  const source = { source: 'redis', url, prefix, connectTimeoutMs: 2000 } as const;
  const auth = { pepper, keys: source, forward: 'replace', replaceWith: 'Bearer sk_sandbox_alpha' } as const;
  const config = configFor(sandbox, { auth });
  const file = join(newFolder(), 'gateway.yaml');
  writeFileSync(file, stringify(config));
  return { config, at: ['--config', file] };
}

const today = () => new Date().toISOString().slice(0, 10);

describe('the key commands with keys in Redis', () => {
  it('import, show, verify, rotate, revoke and list as with a file', async () => {
    const { at } = newList();
    const input = 'sk_sandbox_imported';
    const one = ['--merchant', 'M-1', '--id', 'old'];
    const add = ['import', ...at, ...one, '--scope', 'balance', '--expires', '30d'];
    expect(await keys(add, { input })).toMatchObject({ code: 0, stdout: '' });
    const shown = await keys(['show', ...at, ...one]);
    expect(JSON.parse(shown.stdout)).toMatchObject({
      ...{ merchant: 'M-1', id: 'old', state: 'in force', scopes: ['balance'], lastUsed: null },
    });
    expect(shown.stdout).not.toMatch(/hmac-sha256|sandbox/);
    const verify = (text: string) => keys(['verify', ...at], { input: text });
    expect(await verify(input)).toMatchObject({ code: 0, stdout: 'old of the merchant M-1, in force\n' });
    expect(await verify('sk_sandbox_another')).toMatchObject({ code: 1, stdout: '' });
    const rotated = await newKey(['rotate', ...at, '--merchant', 'M-1', '--overlap', '24h']);
    expect((await verify(rotated)).stdout).toMatch(/^\d{4}-\d\d-\d\d of the merchant M-1, in force\n$/);
    expect(await keys(['revoke', ...at, ...one])).toMatchObject({ code: 0, stdout: '' });
    const listed = await keys(['list', ...at]);
    expect(listed.stdout).toMatch(
      /^merchant +id +state +until +last used +scopes\nM-1 +\S+ +in force +never +balance\nM-1 +old +revoked +never +balance\n$/,
    );
  });

  it('two operators at once lose nothing', async () => {
    const { at } = newList();
    const issue = (merchant: string) => newKey(['issue', ...at, '--merchant', merchant]);
    const secrets = await Promise.all([issue('M-1'), issue('M-1'), issue('M-2')]);
    expect(new Set(secrets).size).toBe(3);
    const listed = JSON.parse((await keys(['list', ...at, '--json'])).stdout);
    expect(listed.map(({ merchant, id }: { merchant: string; id: string }) => `${merchant} ${id}`)).toEqual([
      ...[`M-1 ${today()}`, `M-1 ${today()}b`, `M-2 ${today()}`],
    ]);
  });

  it('list and show say on which day a gateway last saw a key', async () => {
    const { at, config } = newList();
    const secret = await newKey(['issue', ...at, '--merchant', 'M-ALPHA', '--id', 'used']);
    await newKey(['issue', ...at, '--merchant', 'M-ALPHA', '--id', 'unused']);
    const gateway = await startGateway(config, ENV);
    const Authorization = `Bearer ${secret}`;
    const before = today();
    expect((await send(gateway.url, { path: '/v2/get_balance', headers: { Authorization } })).status).toBe(
      200,
    );
    expect(await gateway.end()).toBe(0);
    expect((await keys(['list', ...at])).stdout).toMatch(
      new RegExp(`unused +in force +never .*\n.* used +in force +(${before}|${today()}) `),
    );
    const shown = await keys(['show', ...at, '--merchant', 'M-ALPHA', '--id', 'used']);
    expect(JSON.parse(shown.stdout).lastUsed).toMatch(/^\d{4}-\d\d-\d\d$/);
  });

  it('refuse what they cannot do, and say why', async () => {
    const { at } = newList();
    const away = newList({ url: 'redis://127.0.0.1:9' });
    const filled = newList();
    await newKey(['issue', ...filled.at, '--merchant', 'M']);
    const issue = ['issue', '--merchant', 'M'];
    const another = { ONCEGATE_PEPPER: 'another-pepper-of-some-length' };
    const refusals = await Promise.all([
      keys(['list', ...at]),
      keys(['revoke', ...at, '--merchant', 'M', '--id', 'a']),
      keys([...issue, ...away.at]),
      keys([...issue, ...filled.at], { env: another }),
      keys([...issue, ...at, '--file', 'keys.yaml']),
      keys([...issue, ...at, '--id', 'a b']),
    ]);
    for (const ended of refusals) expectPlain(ended);
    expect(refusals.map(({ code, stdout, stderr }) => [code, stdout, stderr.split('\n')[0]])).toEqual([
      [78, '', expect.stringContaining('there are no secret keys in redis (prefix test-')],
      [1, '', expect.stringContaining('there are no secret keys in redis (prefix test-')],
      [69, '', expect.stringMatching(/the secret keys cannot be loaded: redis cannot be reached: .*REFUSED/)],
      [78, '', expect.stringContaining('its pepperCheck differs')],
      [64, '', expect.stringContaining('name one of --config and --file')],
      [1, '', expect.stringContaining('id: must be a string of 1 to 64')],
    ]);
  });

  it('a gateway without a list, without its Redis, or with another pepper does not start', async () => {
    const { at, config } = newList();
    await expect(startGateway(config, ENV)).rejects.toThrow('there are no secret keys in redis');
    const away = newList({ url: 'redis://127.0.0.1:9' });
    await expect(startGateway(away.config, ENV)).rejects.toThrow(
      /ended \(69\): oncegate: the secret keys cannot be loaded: redis cannot be reached/,
    );
    await newKey(['issue', ...at, '--merchant', 'M']);
    const another = { ONCEGATE_PEPPER: 'another-pepper-of-some-length' };
    await expect(startGateway(config, another)).rejects.toThrow(
      'auth.pepper is not the pepper that made these hashes',
    );
  });
});
