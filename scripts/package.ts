/**
 * `npm run package [-- FOLDER] [--repository URL]`: builds the npm package in a folder (default ./package), as a tarball. The manifest
 * there is not the repository's: it has no scripts, no development packages, and no Node of its own. Nor is the README. Without the
 * address of the repository, npm refuses to publish the tarball.
 */
import { execFileSync, type StdioOptions } from 'node:child_process';
import { cpSync, existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { COPIED, manifest, version } from './package/manifest.ts';
import { root } from './root.ts';

const { values, positionals } = parseArgs({
  options: { repository: { type: 'string' } },
  allowPositionals: true,
});
const target = resolve(positionals[0] ?? join(root, 'package'));
const contents = join(target, 'contents');

/** Pictures, and what is only for those who change this repository. */
const LEFT_OUT = ['docs/interfaces.json', 'docs/console', 'grafana/source', 'grafana/generate.ts'];

/** Leaves the text of links in the documents that lead to a part of the repository that the package does not have. */
function removeDeadLinks(): void {
  for (const path of globSync('**/*.md', { cwd: contents })) {
    const file = join(contents, path);
    const isDead = (target: string) =>
      !/^[a-z]+:/.test(target) && !existsSync(join(dirname(file), target.replace(/#.*/, '')));
    const text = readFileSync(file, 'utf8').replace(
      /!?\[([^\]]*)\]\(([^)\s]+)\)/g,
      (link, label: string, target: string) => (isDead(target) ? label : link),
    );
    writeFileSync(file, text);
  }
}

rmSync(target, { recursive: true, force: true });
mkdirSync(contents, { recursive: true });
for (const name of COPIED)
  cpSync(join(root, name), join(contents, name), {
    recursive: true,
    filter: (path) => !LEFT_OUT.some((folder) => path === join(root, folder)),
  });
removeDeadLinks();
cpSync(join(root, 'scripts', 'package', 'README.md'), join(contents, 'README.md'));
writeFileSync(join(contents, 'package.json'), `${JSON.stringify(manifest(values.repository), null, 2)}\n`);
const stdio: StdioOptions = ['ignore', 'ignore', 'inherit'];
execFileSync(process.execPath, [join(root, 'scripts', 'build.ts'), join(contents, 'dist')], { stdio });
execFileSync('npm', ['pack', '--silent', '--pack-destination', target], { cwd: contents, stdio });
process.stdout.write(`${join(target, `oncegate-${version}.tgz`)}\n`);
