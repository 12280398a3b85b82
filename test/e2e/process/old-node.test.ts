import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { expectPlain, runProcess } from '../../support/command.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

/** Gives this Node another version number, and fails if the entry loads the bundle of the command. */
const preload = (version: string) => `
  import vm from 'node:vm';
  Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '${version}' } });
  vm.Script = function (source, { filename }) {
    throw new Error('loaded ' + filename);
  };`;

const runAs = (version: string, ...args: string[]) =>
  runProcess(args, {
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
    expect((await runAs(version, '--help')).stderr).toMatch(/loaded .*\/dist\/command\/run-/);
  });
});

it('the package, the setup and the README name the same version', () => {
  expect(JSON.parse(read('package.json')).engines.node).toBe('>=24.18');
  expect(JSON.parse(read('package-lock.json')).packages[''].engines.node).toBe('>=24.18');
  expect(read('scripts/setup.mjs')).toContain('(major === 24 && minor < 18)');
  expect(read('README.md')).toContain('needs Node 24.18');
});
