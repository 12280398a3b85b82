/**
 * `npm run package [-- FOLDER]`: builds the npm package in a folder (default ./package), as a tarball. The manifest there is
 * not the repository's: it has no scripts, no development packages, and no Node of its own.
 */
import { execFileSync, type StdioOptions } from 'node:child_process';
import { cpSync, existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { root } from './root.ts';

const target = resolve(process.argv[2] ?? join(root, 'package'));
const contents = join(target, 'contents');

/** What a machine needs on which nothing of this repository is but the package. docs/deploying.md copies from it. */
const COPIED = [
  ...['config', 'deploy', 'docs', 'examples', 'grafana'],
  ...['README.md', 'LICENSE', 'CHANGELOG.md', 'SECURITY.md'],
];
/** Pictures, and what is only for those who change this repository. */
const LEFT_OUT = ['docs/interfaces.json', 'docs/console', 'grafana/source', 'grafana/generate.ts'];

const json = (path: string) => JSON.parse(readFileSync(join(root, path), 'utf8'));

function manifest(): object {
  const manifest = json('package.json');
  const { name, version, description, license, type, engines, bin, dependencies } = manifest;
  // OpenTelemetry is needed for `tracing.endpoint` only, and whoever sets it installs it (ADR 32).
  const optional = Object.keys(manifest.optionalDependencies).filter((name) =>
    name.startsWith('@opentelemetry/'),
  );
  return {
    ...{ name, version, description, license, type, engines, bin },
    keywords: ['idempotency', 'idempotency-key', 'express', 'middleware', 'gateway', 'payments'],
    exports: {
      '.': { types: './dist/index.d.ts', default: './dist/index.js' },
      './package.json': './package.json',
    },
    files: ['dist', ...COPIED],
    dependencies,
    // Any version, because npm refuses to install this package beside another one, even if nobody uses it.
    peerDependencies: Object.fromEntries(optional.map((library) => [library, '*'])),
    peerDependenciesMeta: Object.fromEntries(optional.map((library) => [library, { optional: true }])),
  };
}

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
writeFileSync(join(contents, 'package.json'), `${JSON.stringify(manifest(), null, 2)}\n`);
const stdio: StdioOptions = ['ignore', 'ignore', 'inherit'];
execFileSync(process.execPath, [join(root, 'scripts', 'build.ts'), join(contents, 'dist')], { stdio });
execFileSync('npm', ['pack', '--silent', '--pack-destination', target], { cwd: contents, stdio });
process.stdout.write(`${join(target, `oncegate-${json('package.json').version}.tgz`)}\n`);
