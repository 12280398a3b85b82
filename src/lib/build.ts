import { readFileSync } from 'node:fs';
import { programFile } from './program-files.ts';

/** What this process runs. */
export interface Build {
  /** The package's version. */
  version: string;
  /** The version of Node, without a leading v. */
  node: string;
  /** The commit that the package was built from, in hexadecimal digits. `unknown`: it was not built, or not in a repository. */
  commit: string;
}

/** The version in package.json, and the commit that `npm run build` wrote beside the compiled files. */
export function thisBuild(): Build {
  const manifest = readFileSync(programFile('../package.json'), 'utf8');
  return { version: JSON.parse(manifest).version, node: process.versions.node, commit: builtFrom() };
}

function builtFrom(): string {
  try {
    const commit = readFileSync(programFile('commit'), 'utf8').trim();
    return /^[0-9a-f]{7,64}$/.test(commit) ? commit : 'unknown';
  } catch {
    return 'unknown';
  }
}
