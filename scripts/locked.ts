import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './root.ts';

/** A package in the lock file. */
export interface Locked {
  version: string;
  license?: string;
  integrity?: string;
  resolved?: string;
  hasInstallScript?: boolean;
  dev?: boolean;
  optional?: boolean;
  devOptional?: boolean;
  dependencies?: Record<string, string>;
  optionalDependencies?: Record<string, string>;
}

/** The packages of the lock file, by their paths. */
export const locked: [path: string, Locked][] = Object.entries<Locked>(
  JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')).packages,
).filter(([path]) => path !== '');

/** What whoever installs the npm package gets with it. */
export const installed = locked.filter(
  ([, { dev, optional, devOptional }]) => !dev && !optional && !devOptional,
);

/** What else is in the image: the client of PostgreSQL, with its own packages. */
function neededBy(name: string, found = new Set<string>()): Set<string> {
  if (found.has(name)) return found;
  found.add(name);
  const [, { dependencies, optionalDependencies } = {}] =
    locked.find(([path]) => path === `node_modules/${name}`) ?? [];
  for (const needed of Object.keys({ ...dependencies, ...optionalDependencies })) neededBy(needed, found);
  return found;
}

const ofPg = neededBy('pg');

/** What else is in the image: the client of PostgreSQL, with its own packages. */
export const inImage = locked.filter(
  (entry) => ofPg.has(entry[0].slice('node_modules/'.length)) && !installed.includes(entry),
);
