import { readFileSync } from 'node:fs';
import { extname } from 'node:path';

/** The folder of the program, `src` or `dist`. This module is one folder below it, and so is the bundle that contains it. */
const FOLDER = new URL('..', import.meta.url);

/** A file that is read while the program runs, by its path in the folder of the program. */
export const programFile = (path: string): URL => new URL(path, FOLDER);

/** The module of a thread, by its path without extension. Its extension is the one of this module or bundle. */
export const threadFile = (path: string): URL => programFile(`${path}${extname(import.meta.url)}`);

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
