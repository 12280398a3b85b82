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
  { file: 'config/openapi.yaml', pattern: /^( {2}version: )(\S+)()/gm },
];

/** The text of a place with another version. */
export const withVersion = (
  text: string,
  { pattern }: (typeof VERSION_PLACES)[number],
  version: string,
): string => text.replace(pattern, `$1${version}$3`);

if (import.meta.main) {
  const version = process.argv[2] ?? '';
  if (!/^\d+\.\d+\.\d+$/.test(version)) throw new Error('usage: node scripts/version.ts X.Y.Z');
  for (const place of VERSION_PLACES) {
    const file = join(root, place.file);
    writeFileSync(file, withVersion(readFileSync(file, 'utf8'), place, version));
  }
}
