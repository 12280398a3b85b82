import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { parse } from 'yaml';
import { newFolder, run } from '../../support/command.ts';

it('config print shows the configuration in force, which a gateway reads again, and no secret', async () => {
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  writeFileSync(
    file,
    'upstream: { url: "http://127.0.0.1:9000", responseTimeoutMs: 5s }\nadmin: { token: "$' +
      '{TOKEN}" }\nstore: { kind: sqlite, encryption: { keys: [{ id: a, secret: "$' +
      '{STORE_KEY}" }] } }\n',
  );
  const env = { TOKEN: 'a-token-of-some-length', STORE_KEY: 'ab'.repeat(32) };
  const printed = await run(['config', 'print', '--config', file], { env });
  expect(printed).toMatchObject({ code: 0, stderr: '' });
  for (const secret of Object.values(env)) expect(printed.stdout).not.toContain(secret);
  expect(parse(printed.stdout)).toMatchObject({
    upstream: { url: 'http://127.0.0.1:9000', responseTimeoutMs: 5000 },
    admin: { token: '[secret]', port: 8081 },
    store: { kind: 'sqlite', path: './data', encryption: { keys: [{ id: 'a', secret: '[secret]' }] } },
  });
  const again = join(folder, 'again.yaml');
  writeFileSync(
    again,
    printed.stdout
      .replace('token: "[secret]"', `token: ${env.TOKEN}`)
      .replace('secret: "[secret]"', `secret: ${env.STORE_KEY}`),
  );
  expect((await run(['config', 'print', '--config', again])).stdout).toBe(printed.stdout);
});

it('config without an action exits with 64 and prints its usage', async () => {
  const ended = await run(['config', 'show']);
  expect(ended).toMatchObject({ code: 64, stdout: '' });
  expect(ended.stderr).toMatch(/needs an action: print\n.*\noncegate: oncegate config print --config FILE/);
});
