import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readdirSync, readFileSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { killAfterTests } from '../../support/process-life.ts';
import { track } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));

/** A folder with what the package has: package.json, dist and its dependencies, and nothing else of the repository. */
function buildPackage(env: NodeJS.ProcessEnv): string {
  const folder = newFolder();
  const build = join(ROOT, 'scripts/build.ts');
  execFileSync(process.execPath, [build, join(folder, 'dist')], { env: { ...process.env, ...env } });
  copyFileSync(join(ROOT, 'package.json'), join(folder, 'package.json'));
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  return folder;
}

it('the built package starts sandbox and gateway in an empty folder, and names its build', async () => {
  const commit = '0123456789abcdef0123456789abcdef01234567';
  const main = join(buildPackage({ ONCEGATE_COMMIT: commit }), 'dist/main.js');
  const cwd = newFolder();
  const args = ['start', '--port', '0', '--admin-port', '0', '--sandbox-port', '0'];
  const child = track(spawn(process.execPath, [main, ...args], { cwd }));
  killAfterTests(child.pid as number);
  let errors = '';
  child.stderr?.on('data', (chunk) => {
    errors += chunk;
  });
  const exited = once(child, 'exit');
  const lines: string[] = [];
  createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', (line) => lines.push(line));
  const has = (text: string) => lines.find((line) => line.includes(text));
  // The log has its own buffer.
  await until(() => has('3. Send it again') && has('"msg":"listening"'), 60_000);
  expect(errors).toBe('');
  const urlOf = (server: string) =>
    lines.join('\n').match(new RegExp(`^  ${server} +(http://[\\d.]+:\\d+)`, 'm'))?.[1] ?? '';
  const answers = [1, 2].map(() => withdraw(urlOf('gateway'), { key: 'order-1001' }));
  expect((await Promise.all(answers)).map(({ status }) => status)).toEqual([201, 201]);
  expect((await send(urlOf('sandbox'), { path: '/_sandbox/ledger' })).json()).toMatchObject({ payouts: 1 });

  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const build = { version, node: process.versions.node, commit };
  expect(JSON.parse(has('"msg":"listening"') ?? '')).toMatchObject({ mode: 'protect', ...build });
  const metrics = await send(urlOf('admin'), { path: '/metrics' });
  expect(metrics.body.toString()).toContain(
    `\noncegate_build_info{version="${version}",node="${process.versions.node}",commit="${commit}"} 1\n`,
  );
  child.kill('SIGTERM');
  expect(await exited).toEqual([0, null]);
  expect(readdirSync(cwd)).toEqual(['data']);
}, 120_000);
