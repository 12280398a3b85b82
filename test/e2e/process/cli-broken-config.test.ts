import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type CommandOptions, type Ended, expectPlain, newFolder, run } from '../../support/command.ts';

const UPSTREAM = 'upstream: { url: "http://127.0.0.1:9" }\n';
const SECRET = 'hunter2-hunter2-hunter2';
const TOKEN_FROM_ENVIRONMENT = 'admin: { token: "$' + '{ADMIN_TOKEN}" }';

async function runWith(command: string, text: string, options?: CommandOptions): Promise<Ended> {
  const file = join(newFolder(), 'gateway.yaml');
  writeFileSync(file, text);
  const ended = await run([command, '--config', file], options);
  return { ...ended, stderr: ended.stderr.replaceAll(`${file}: `, '') };
}

describe('a broken configuration ends a command with 78 and a line for each mistake', () => {
  it.concurrent.each(['serve', 'check', 'start'])('%s', async (command) => {
    const ended = await runWith(command, `${UPSTREAM}listen: { port: high }\nwrokers: 2\n`);
    expect(ended).toMatchObject({ code: 78, stdout: '' });
    const lines = ended.stderr.trimEnd().split('\n');
    expect(lines).toHaveLength(2);
    expect(lines).toContainEqual(expect.stringMatching(/^oncegate: listen\.port: "high" is not allowed: .+/));
    expect(lines).toContain('oncegate: wrokers: is not an option');
    expectPlain(ended);
  });

  it.concurrent.each([
    [
      'a name without a value',
      `${UPSTREAM}${TOKEN_FROM_ENVIRONMENT}`,
      /^oncegate: the environment has no ADMIN_TOKEN\n$/,
    ],
    ['a dead alias', `${UPSTREAM}admin: { token: *${SECRET} }`, /^oncegate: is not valid YAML: .+\n$/],
    ['an address in the wrong place', `upstream: "http://user:${SECRET}@a"`, /^oncegate: upstream: .+\n$/],
  ])('%s', async (_, text, line) => {
    const ended = await runWith('check', text);
    expect(ended.code).toBe(78);
    expectPlain(ended);
    expect(ended.stderr).toMatch(line);
    expect(ended.stderr).not.toContain(SECRET);
  });

  it.concurrent.each(['serve', 'check', 'start'])(
    '%s: an admin port beyond loopback without a token',
    async (command) => {
      const ended = await runWith(command, `${UPSTREAM}admin: { host: 0.0.0.0 }`);
      expect(ended).toMatchObject({ code: 78, stdout: '' });
      expect(ended.stderr).toMatch(
        /^oncegate: admin\.token: is required when admin\.host is not a loopback .+\n$/,
      );
      expectPlain(ended);
    },
  );

  it.concurrent('and so does a file that is not there', async () => {
    const ended = await run(['serve', '--config', '/nowhere/gateway.yaml']);
    expect(ended).toMatchObject({
      code: 78,
      stderr: 'oncegate: /nowhere/gateway.yaml: cannot be read (ENOENT)\n',
    });
  });
});
