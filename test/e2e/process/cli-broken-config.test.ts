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

describe('a command with a broken configuration', () => {
  it.concurrent.each(['serve', 'check', 'start'])(
    'exits with 78 and one line for each mistake: %s',
    async (command) => {
      const ended = await runWith(command, `${UPSTREAM}listen: { port: high }\nwrokers: 2\n`);
      expect(ended).toMatchObject({ code: 78, stdout: '' });
      const lines = ended.stderr.trimEnd().split('\n');
      expect(lines).toHaveLength(2);
      expect(lines).toContainEqual(
        expect.stringMatching(/^oncegate: listen\.port: "high" is not allowed: .+/),
      );
      expect(lines).toContain('oncegate: wrokers: is not an option; is it workers? (line 3, column 1)');
      expectPlain(ended);
    },
  );

  it.concurrent.each([
    [
      'a variable that is not set',
      `${UPSTREAM}${TOKEN_FROM_ENVIRONMENT}`,
      /^oncegate: the environment has no ADMIN_TOKEN\n$/,
    ],
    [
      'an alias without an anchor',
      `${UPSTREAM}admin: { token: *${SECRET} }`,
      /^oncegate: is not valid YAML: .+\n$/,
    ],
    ['an address in place of a section', `upstream: "http://user:${SECRET}@a"`, /^oncegate: upstream: .+\n$/],
  ])('exits with 78 and no secret in its message: %s', async (_, text, line) => {
    const ended = await runWith('check', text);
    expect(ended.code).toBe(78);
    expectPlain(ended);
    expect(ended.stderr).toMatch(line);
    expect(ended.stderr).not.toContain(SECRET);
  });

  it.concurrent.each(['serve', 'check', 'start'])(
    'exits with 78 for an admin port beyond loopback without a token: %s',
    async (command) => {
      const ended = await runWith(command, `${UPSTREAM}admin: { host: 0.0.0.0 }`);
      expect(ended).toMatchObject({ code: 78, stdout: '' });
      expect(ended.stderr).toMatch(
        /^oncegate: admin\.token: is required when admin\.host is not a loopback .+\n$/,
      );
      expectPlain(ended);
    },
  );

  it.concurrent('exits with 78 if the file does not exist', async () => {
    const ended = await run(['serve', '--config', '/nowhere/gateway.yaml']);
    expect(ended).toMatchObject({
      code: 78,
      stderr: 'oncegate: /nowhere/gateway.yaml: cannot be read (ENOENT)\n',
    });
  });
});
