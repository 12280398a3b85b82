import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** The folder of the repository, with a slash behind it. */
export const ROOT = fileURLToPath(new URL('../../', import.meta.url));

export const read = (path: string): string => readFileSync(`${ROOT}${path}`, 'utf8');
