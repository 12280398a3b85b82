import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { type CommandOptions, expectPlain, newFolder, run } from '../../support/command.ts';
import { codeOf, configFor, openSandbox, startGateway } from './gateways.ts';

const PEPPER = 'a-pepper-of-some-length';
const SECRET = 'sk_sandbox_bravo';

const hash = (args: string[], options: CommandOptions = {}) =>
  run(['keys', 'hash', ...args], { input: SECRET, env: { ONCEGATE_PEPPER: PEPPER }, ...options });

describe('keys hash', () => {
  it('prints a line with which a gateway accepts the key', async () => {
    const printed = await Promise.all([
      hash(['--id', '2026-11']),
      hash(['--id', 'reading', '--scope', 'balance'], { input: 'sk_sandbox_alpha\n' }),
    ]);
    for (const ended of printed) {
      expect(ended).toMatchObject({ code: 0, stderr: '' });
      expect(ended.stdout).toMatch(/^- \{ id: ".+", hash: "hmac-sha256:[0-9a-f]{64}".* \}\n$/);
      expect(ended.stdout).not.toMatch(/sk_sandbox|a-pepper/);
    }
    const [bravo, alpha] = printed.map(({ stdout }) => stdout);
    const path = join(newFolder(), 'keys.yaml');
    writeFileSync(
      path,
      `merchants:\n  - code: M-BRAVO\n    keys:\n      ${bravo}  - code: M-ALPHA\n    keys:\n      ${alpha}`,
    );
    const pepper = '$' + '{ONCEGATE_PEPPER}';
    const config = configFor(await openSandbox(), { auth: { pepper, keys: { source: 'file', path } } });
    const gateway = await startGateway(config, { ONCEGATE_PEPPER: PEPPER });

    const balance = (secret: string) =>
      send(gateway.url, { path: '/v2/get_balance', headers: { Authorization: `Bearer ${secret}` } });
    const read = await balance(SECRET);
    expect(read.status).toBe(200);
    expect(read.json()).toMatchObject({ data: { merchant_code: 'M-BRAVO' } });
    expect((await balance('sk_sandbox_charlie')).status).toBe(401);
    expect((await balance('sk_sandbox_alpha')).status).toBe(200);
    const refused = await withdraw(gateway.url, { secret: 'sk_sandbox_alpha' });
    expect([refused.status, codeOf(refused)]).toEqual([403, 'insufficient_scope']);
    expect(gateway.lines.join('\n')).not.toMatch(/sk_sandbox|a-pepper/);
  });

  it.concurrent.each([
    ['no pepper', 78, ['--id', 'a'], { env: { ONCEGATE_PEPPER: '' } }, /ONCEGATE_PEPPER/],
    ['a short pepper', 78, ['--id', 'a'], { env: { ONCEGATE_PEPPER: 'hunter2' } }, /16 characters/],
    ['no secret', 64, ['--id', 'a'], { input: '\n' }, /no secret key/],
    ['too much input', 64, ['--id', 'a'], { input: 'hunter2'.repeat(600) }, /too long/],
    ['a secret that is no bearer token', 1, ['--id', 'a'], { input: 'hunter2 hunter2' }, /bearer token/],
    ['two lines', 1, ['--id', 'a'], { input: 'hunter2\nhunter2\n' }, /bearer token/],
    ['an invalid id', 1, ['--id', 'a b'], {}, /id: /],
    ['an invalid scope', 1, ['--id', 'a', '--scope', ''], {}, /scopes/],
  ] as [string, number, string[], CommandOptions, RegExp][])(
    'fails without printing a secret: %s',
    async (_, code, args, options, reason) => {
      const ended = await hash(args, options);
      expect(ended).toMatchObject({ code, stdout: '' });
      expectPlain(ended);
      expect(ended.stderr).toMatch(reason);
      expect(ended.stderr).not.toMatch(/hunter2|sk_sandbox|a-pepper/);
    },
  );
});
