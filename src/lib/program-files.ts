import { extname } from 'node:path';

/** The folder of the program, `src` or `dist`. This module is one folder below it, and so is the bundle that contains it. */
const FOLDER = new URL('..', import.meta.url);

/** A file that is read while the program runs, by its path in the folder of the program. */
export const programFile = (path: string): URL => new URL(path, FOLDER);

/** The module of a thread, by its path without extension. Its extension is the one of this module or bundle. */
export const threadFile = (path: string): URL => programFile(`${path}${extname(import.meta.url)}`);
