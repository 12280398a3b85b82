import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { expectPlain, newFolder, run } from '../../support/command.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

/** Gives this Node another version number, and fails if the entry loads other files of the gateway. */
const preload = (version: string) => `
  import { registerHooks } from 'node:module';
  Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '${version}' } });
  registerHooks({
    resolve(specifier, context, next) {
      if (/\\/cli\\/|\\/workers\\//.test(specifier)) throw new Error('loaded ' + specifier);
      return next(specifier, context);
    },
  });`;

const runAs = (version: string, ...args: string[]) =>
  run(args, {
    env: { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(preload(version))}` },
  });

describe('an old Node', () => {
  it.each(['22.22.0', '24.9.0', '24.17.9'])('%s is refused in one sentence', async (version) => {
    const ended = await runAs(version, 'start', '--config', 'none.yaml');
    expect([ended.code, ended.stdout]).toEqual([1, '']);
    expect(ended.stderr).toMatch(/^oncegate: Node 24\.18 or newer is needed, and \S+ is Node [\d.]+\.\n$/);
    expect(ended.stderr).toContain(`Node ${version}.`);
    expectPlain(ended);
  });

  it.each(['24.18.0', '25.0.0'])('is not %s: it loads the command', async (version) => {
    expect((await runAs(version, '--help')).stderr).toContain('loaded ./cli/');
  });
});

/** An old Node of this machine, if any. The Node from the packages comes first in the path of an npm script, and is not old. */
const oldNode = (process.env.PATH ?? '')
  .split(':')
  .concat('/usr/bin', '/usr/local/bin')
  .map((folder) => join(folder, 'node'))
  .find((node) => /^v(?:1[4-9]|2[0-3])\./.test(spawnSync(node, ['--version']).stdout?.toString() ?? ''));

describe.skipIf(oldNode === undefined)('the compiled entry on a real old Node', () => {
  const dist = newFolder();
  beforeAll(() => {
    writeFileSync(join(dist, 'package.json'), read('package.json'));
    const tsc = join(ROOT, 'node_modules', '.bin', 'tsc');
    const build = ['-p', join(ROOT, 'tsconfig.build.json'), '--outDir', dist];
    expect(spawnSync(tsc, build, { encoding: 'utf8' })).toMatchObject({ status: 0 });
  });

  it('prints which version it needs', () => {
    const ended = spawnSync(oldNode as string, [join(dist, 'main.js'), '--help'], {
      encoding: 'utf8',
      cwd: newFolder(),
    });
    expect([ended.status, ended.stdout]).toEqual([1, '']);
    expect(ended.stderr).toMatch(/^oncegate: Node 24\.18 or newer is needed, and \S+ is Node [\d.]+\.\n$/);
  });
});

it('the package, the setup and the README name the same version', () => {
  expect(JSON.parse(read('package.json')).engines.node).toBe('>=24.18');
  expect(JSON.parse(read('package-lock.json')).packages[''].engines.node).toBe('>=24.18');
  expect(read('scripts/setup.mjs')).toContain('(major === 24 && minor < 18)');
  expect(read('README.md')).toContain('needs Node 24.18');
});
