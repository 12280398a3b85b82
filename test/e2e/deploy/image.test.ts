import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../support/config.ts';
import { ROOT, read } from '../../support/repository.ts';

const stages = read('Dockerfile')
  .split(/^FROM .*$/m)
  .slice(1);

/** What a stage copies from the folder of the repository. */
const copied = (stage: string) =>
  [...stage.matchAll(/^COPY (?:--chown=\S+ )?(?!--)(.+) \S+$/gm)].flatMap(([, paths = '']) =>
    paths.split(' '),
  );

/** The commands of a stage's RUN lines. */
const commands = (stage: string) =>
  [...stage.matchAll(/^RUN ((?:.*\\\n)*.*)$/gm)].flatMap(([, text = '']) =>
    text.replaceAll('\\\n', '').split('&&'),
  );

function run(folder: string, command: string): string {
  const { status, stdout, stderr } = spawnSync('sh', ['-c', command], { cwd: folder, encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return stdout;
}

it('what the Dockerfile copies is enough to build the gateway, and to run it', { timeout: 60_000 }, () => {
  const [build = '', final = ''] = stages;
  const folder = temporaryFolder();
  for (const path of copied(build)) cpSync(join(ROOT, path), join(folder, path), { recursive: true });
  // In place of `npm ci`, which takes long and is the same as in setup.mjs.
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  const own = commands(build).filter((command) => command.includes('node scripts/'));
  expect(own).not.toHaveLength(0);
  for (const command of own) run(folder, `PATH="${ROOT}/node_modules/.bin:$PATH" ${command}`);

  const image = temporaryFolder();
  for (const path of ['node_modules', 'dist']) symlinkSync(join(folder, path), join(image, path));
  for (const path of copied(final)) cpSync(join(ROOT, path), join(image, path), { recursive: true });
  mkdirSync(join(image, 'etc'));
  writeFileSync(
    join(image, 'etc', 'gateway.yaml'),
    'upstream: { url: "http://127.0.0.1:9" }\nauth: { keys: { source: upstream } }\n',
  );
  const [, program = ''] = /^ENTRYPOINT \["node", "(.+)"\]$/m.exec(final) ?? [];
  const checked = run(image, `"${process.execPath}" ${program} check --offline --config etc/gateway.yaml`);
  expect(checked).toContain('skip upstream');
  expect(readFileSync(join(image, 'dist/page/index.html'), 'utf8')).toContain('/console/assets/');
  expect(final).toMatch(/^USER node$/m);
});
