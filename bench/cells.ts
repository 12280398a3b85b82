import type { Work } from './load.ts';
import type { Size } from './nginx.ts';

/** One system under one workload. Each round runs all cells; cells that are compared run directly after each other. */
export interface Cell {
  work: Work;
  size: Size;
  system: string;
}

const cells = (work: Work, size: Size, systems: readonly string[]): Cell[] =>
  systems.map((system) => ({ work, size, system }));

const larger = (size: Size): Cell[] => [
  ...cells('balance', size, ['oncegate-redis', 'express-hpm', 'nginx']),
  ...cells('first', size, ['oncegate-redis', 'node-idempotency']),
  ...cells('replay', size, ['oncegate-redis', 'node-idempotency']),
];

export const ALL_CELLS: readonly Cell[] = [
  ...cells('balance', 300, ['oncegate-redis', 'express-hpm', 'express-undici', 'express-logged']),
  ...cells('balance', 300, ['http-proxy-3', 'fast-gateway', 'node-http', 'undici', 'nginx']),
  ...cells('passthrough', 300, ['oncegate-redis', 'express-hpm']),
  ...cells('unkeyed', 300, ['oncegate-redis']),
  ...cells('upload', 300, ['oncegate-redis', 'express-hpm']),
  ...cells('first', 300, ['oncegate-redis', 'node-idempotency', 'express-idempotency', 'oncegate-sqlite']),
  ...cells('first', 300, ['express-redis', 'express-redis-logged', 'express-sqlite-logged']),
  ...cells('first', 300, ['oncegate-redis-always', 'oncegate-postgres']),
  ...cells('replay', 300, ['oncegate-redis', 'node-idempotency', 'express-memory', 'oncegate-sqlite']),
  ...cells('replay', 300, ['express-redis', 'express-redis-logged', 'express-sqlite-logged']),
  ...cells('replay', 300, ['express-idempotency', 'oncegate-postgres']),
  ...cells('mixed', 300, ['oncegate-redis', 'node-idempotency', 'oncegate-sqlite']),
  ...larger(4096),
  ...larger(65_536),
];

/** The cells of `--quick`: those that the most important targets need. */
export const QUICK_CELLS: readonly Cell[] = ALL_CELLS.filter(
  ({ size, work, system }) =>
    size === 300 &&
    ['balance', 'passthrough', 'upload', 'first', 'replay'].includes(work) &&
    [
      ...['oncegate-redis', 'oncegate-sqlite', 'oncegate-postgres', 'express-hpm', 'express-undici'],
      ...['express-logged', 'express-redis', 'express-redis-logged', 'express-sqlite-logged'],
      ...['express-memory', 'node-idempotency', 'express-idempotency'],
    ].includes(system),
);

export const nameOf = ({ work, size, system }: Cell): string => `${work} ${size} ${system}`;
