/**
 * `node scripts/version.ts X.Y.Z`: writes the version into every place that names it. CHANGELOG.md is written by hand:
 * docs/releasing.md. A test checks that all places agree.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './root.ts';

/** Places that name the version of this package: the second group of the pattern. */
export const VERSION_PLACES = [
  { file: 'package.json', pattern: /^( {2}"version": ")([^"]+)(")/gm },
  // The first two names in the file are this package's.
  { file: 'package-lock.json', pattern: /("name": "oncegate",\n\s*"version": ")([^"]+)(")/g },
  { file: 'compose.yaml', pattern: /(image: oncegate:)(\S+)()/g },
  { file: 'deploy/kubernetes/base/deployment.yaml', pattern: /(image: oncegate:)(\S+)()/g },
  { file: 'docs/deploying.md', pattern: /(\boncegate:)(\d+\.\d+\.\d+)()/g },
  { file: 'deploy/helm/Chart.yaml', pattern: /^(version: |appVersion: ")([\d.]+)("?)/gm },
  { file: 'config/openapi.yaml', pattern: /^( {2}version: )(\S+)()/gm },
];

if (import.meta.main) {
  const version = process.argv[2] ?? '';
  if (!/^\d+\.\d+\.\d+$/.test(version)) throw new Error('usage: node scripts/version.ts X.Y.Z');
  for (const { file, pattern } of VERSION_PLACES) {
    const path = join(root, file);
    writeFileSync(path, readFileSync(path, 'utf8').replace(pattern, `$1${version}$3`));
  }
}
