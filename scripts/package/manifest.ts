import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from '../root.ts';

/** What a machine needs on which nothing of this repository is but the package. docs/deploying.md copies from it. */
export const COPIED = [
  ...['config', 'deploy', 'docs', 'examples', 'grafana'],
  ...['LICENSE', 'CHANGELOG.md', 'SECURITY.md'],
];

const ours = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
export const version: string = ours.version;

const ADDRESS = /^https:\/\/[\w.-]+(?:\/[\w.-]+)+$/;

/**
 * The manifest of the npm package.
 *
 * @param repository the address of its repository. Without one there are placeholders, and npm refuses to publish the package
 * @throws {Error} if that is no address
 */
export function manifest(repository?: string): object {
  if (repository !== undefined && !ADDRESS.test(repository))
    throw new Error('--repository must be an address such as https://HOST/OWNER/NAME');
  const { name, description, license, type, engines, bin, dependencies } = ours;
  const address = repository ?? 'https://REPOSITORY';
  // Whoever sets `tracing.endpoint` or `store.kind: postgres` installs what it needs (ADR 32, ADR 44). Node is no library.
  const optional = Object.keys(ours.optionalDependencies).filter((name) => !name.startsWith('node-'));
  return {
    ...{ name, version, description, license, type, engines, bin },
    ...(repository === undefined && { private: true }),
    repository: { type: 'git', url: `git+${address}.git` },
    homepage: `${address}#readme`,
    bugs: `${address}/issues`,
    keywords: ['idempotency', 'idempotency-key', 'express', 'middleware', 'gateway', 'payments'],
    // For TypeScript's older ways to find a package, which do not read `exports`.
    main: './dist/entry.cjs',
    types: './dist/index.d.ts',
    exports: {
      '.': {
        import: { types: './dist/index.d.ts', default: './dist/entry.cjs' },
        require: { types: './dist/index.d.cts', default: './dist/entry.cjs' },
      },
      './package.json': './package.json',
    },
    files: ['dist', 'README.md', ...COPIED],
    dependencies,
    // Any version, because npm refuses to install this package beside another one, even if nobody uses it.
    peerDependencies: Object.fromEntries(optional.map((library) => [library, '*'])),
    peerDependenciesMeta: Object.fromEntries(optional.map((library) => [library, { optional: true }])),
  };
}
