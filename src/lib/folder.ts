import { existsSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Creates a folder that only this user can access, and its missing parents. (`mkdirSync` with `recursive` never returns in
 * places such as /proc, where the parent exists and nothing can be created in it.)
 *
 * @throws {NodeJS.ErrnoException} if it cannot be created
 */
export function makeFolder(path: string): void {
  if (existsSync(path)) return;
  const parent = dirname(path);
  if (parent !== path) makeFolder(parent);
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    // Gateways may start together: another one may have created the folder after the check above.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}
