import { createHash } from 'node:crypto';
import { globSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { root } from './root.ts';

/** Writes a file of a bundle. Nobody reads half of it. */
export function put(path: string, contents: string | Uint8Array, mode = 0o644): void {
  const draft = `${path}.${process.pid}`;
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(draft, contents, { mode });
  renameSync(draft, path);
}

/** What a bundle is made of: these files, the versions of the packages, and Node. */
export function stateOf(pattern: string): string {
  const digest = createHash('sha256').update(process.version);
  for (const name of [...globSync(pattern, { cwd: root }).sort(), 'package-lock.json'])
    digest.update(`${name}\n`).update(readFileSync(join(root, name)));
  return digest.digest('hex');
}

/** The state that ends a file of a bundle, if there is such a file. */
export function stateIn(path: string): string | undefined {
  try {
    return /(\w{64})\W*$/.exec(readFileSync(path, 'utf8'))?.[1];
  } catch {
    return undefined;
  }
}
