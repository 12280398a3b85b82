/**
 * `node scripts/version.ts X.Y.Z`: writes the version into every place that names it. CHANGELOG.md is written by hand:
 * docs/releasing.md. A test checks that all places agree.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** A place that names the version of this package. */
interface Place {
  file: string;
  /** The version is its second group. */
  pattern: RegExp;
}

export const VERSION_PLACES: readonly Place[] = [
  { file: 'package.json', pattern: /^( {2}"version": ")([^"]+)(")/gm },
  // The first two names in the file are this package's.
  { file: 'package-lock.json', pattern: /("name": "oncegate",\n\s*"version": ")([^"]+)(")/g },
  { file: 'compose.yaml', pattern: /(image: oncegate:)(\S+)()/g },
  { file: 'deploy/kubernetes/base/deployment.yaml', pattern: /(image: oncegate:)(\S+)()/g },
  { file: 'config/openapi.yaml', pattern: /^( {2}version: )(\S+)()/gm },
];

/** The text of a place with another version. */
export const withVersion = (text: string, { pattern }: Place, version: string): string =>
  text.replace(pattern, `$1${version}$3`);

const pathOf = (file: string) => fileURLToPath(new URL(`../${file}`, import.meta.url));

if (import.meta.main) {
  const version = process.argv[2] ?? '';
  if (!/^\d+\.\d+\.\d+$/.test(version)) throw new Error('usage: node scripts/version.ts X.Y.Z');
  for (const place of VERSION_PLACES) {
    const file = pathOf(place.file);
    writeFileSync(file, withVersion(readFileSync(file, 'utf8'), place, version));
  }
  // Other parts of the document come from the sources.
  const { status } = spawnSync(process.execPath, [pathOf('scripts/openapi.ts')], { stdio: 'inherit' });
  process.exitCode = status ?? 1;
}
