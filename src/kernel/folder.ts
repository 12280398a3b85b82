import { existsSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Makes a folder for this user only, and those above it. (`mkdirSync` with `recursive` never returns in places such as
 * /proc, where the folder above is there and nothing can be made in it.)
 *
 * @throws the system's error where it cannot be made
 */
export function makeFolder(path: string): void {
  if (existsSync(path)) return;
  const above = dirname(path);
  if (above !== path) makeFolder(above);
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    // Another process made it a moment ago: workers start together.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}
