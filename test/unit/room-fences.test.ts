import { readdirSync, readFileSync } from 'node:fs';
import { join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const SRC = fileURLToPath(new URL('../../src', import.meta.url));

/** Files of src, relative to it, with what they import. */
const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' })
  .filter((path) => path.endsWith('.ts'))
  .map((path) => ({ path: path.split(sep).join('/'), imports: importsOf(join(SRC, path)) }));

function importsOf(file: string): string[] {
  const text = readFileSync(file, 'utf8');
  const found = [...text.matchAll(/(?:from|import\()\s*'([^']+)'/g), ...text.matchAll(/^import '([^']+)'/gm)];
  return found.map(([, specifier = '']) =>
    specifier.startsWith('.')
      ? relative(SRC, join(file, '..', specifier))
          .split(sep)
          .join('/')
      : specifier,
  );
}

const roomOf = (path: string) => (path.includes('/') ? (path.split('/')[0] as string) : 'composition');
const isOurs = (specifier: string) => /\.ts$/.test(specifier);

/** Which rooms a room may look into, besides itself and the kernel. Composition may look everywhere. */
const MAY_IMPORT: Record<string, string[]> = {
  // Its schema is composed of every room's options.
  config: [
    'admin/options.ts',
    'auth/options.ts',
    'idempotency/options.ts',
    'observability/options.ts',
    'operations/options.ts',
    'upstream/options.ts',
  ],
  workers: ['gateway/gateway.ts', 'admin/application.ts'],
};
const COMPOSITION = ['composition', 'gateway', 'cli'];

/** Libraries that live in one room only. */
const HOMES: [library: string, home: RegExp][] = [
  ['ioredis', /^idempotency\/stores\/redis\//],
  ['redlock', /^idempotency\/stores\/redis\//],
  ['undici', /^upstream\//],
  ['http-proxy-middleware', /^upstream\//],
  ['pino', /^observability\//],
  // The workers' counts are added up by the library that made them.
  ['prom-client', /^(?:observability|workers)\//],
  ['node:sqlite', /^(?:idempotency\/stores\/sqlite|sandbox)\//],
  ['yaml', /^(?:config|auth)\//],
];

/** The schema of the configuration needs zod. */
const OPTIONS = 'idempotency/options.ts';
const isOutside = (to: string) =>
  isOurs(to) ? /\/(?:stores|http|doubt)\//.test(to) : !/^node:(?:crypto|stream|timers\/promises)$/.test(to);

describe('rooms', () => {
  it('are looked at: there are files in each', () => {
    const rooms = new Set(files.map(({ path }) => roomOf(path)));
    for (const room of [
      'kernel',
      'config',
      'auth',
      'idempotency',
      'operations',
      'gateway',
      'upstream',
      'observability',
      'admin',
      'cli',
      'sandbox',
    ]) {
      expect(rooms).toContain(room);
    }
    expect(files.flatMap(({ imports }) => imports).length).toBeGreaterThan(200);
  });

  it('import the kernel and not each other', () => {
    const offences = files.flatMap(({ path, imports }) => {
      const room = roomOf(path);
      if (COMPOSITION.includes(room)) return [];
      const allowed = MAY_IMPORT[room] ?? [];
      const foreign = imports.filter((to) => isOurs(to) && roomOf(to) !== room && roomOf(to) !== 'kernel');
      return foreign.filter((to) => !allowed.includes(to)).map((to) => `${path} imports ${to}`);
    });
    expect(offences).toEqual([]);
  });

  it('the kernel imports nothing but types and parts of Node', () => {
    const offences = files
      .filter(({ path }) => roomOf(path) === 'kernel')
      .flatMap(({ path, imports }) => imports.map((to) => ({ path, to })))
      .filter(({ to }) => !to.startsWith('node:') && !(isOurs(to) && roomOf(to) === 'kernel'));
    expect(offences).toEqual([]);
  });

  it('the engine knows no HTTP server and no database', () => {
    const engine = files.filter(({ path }) => /^idempotency\/[^/]+\.ts$/.test(path) && path !== OPTIONS);
    expect(engine.map(({ path }) => path)).toContain('idempotency/engine.ts');
    const outside = engine.flatMap(({ path, imports }) =>
      imports.filter(isOutside).map((to) => `${path} imports ${to}`),
    );
    expect(outside).toEqual([]);
  });

  it.each(HOMES)('%s lives in its home', (library, home) => {
    const users = files.filter(({ imports }) =>
      imports.some((to) => to === library || to.startsWith(`${library}/`)),
    );
    expect(users.length).toBeGreaterThan(0);
    expect(users.map(({ path }) => path).filter((path) => !home.test(path))).toEqual([]);
  });
});
