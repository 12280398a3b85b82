/**
 * The fences between the rooms of src, as a part of `npm run lint`: which room may import which, and where each library
 * lives. Biome finds circular imports (noImportCycles).
 */
import { globSync, readFileSync } from 'node:fs';
import { posix, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

/** A file with what it imports: a path relative to src, or the name of a package. */
interface SourceFile {
  path: string;
  imports: readonly string[];
}

/**
 * The files that a room may import from other rooms. Every room may import its own files and the kernel's. Rooms that compose
 * others have no limits.
 */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  // The configuration's schema is composed of every room's options.
  config: [
    'admin/options.ts',
    'auth/options.ts',
    'idempotency/options.ts',
    'observability/options.ts',
    'operations/options.ts',
    // A configuration whose public paths open an operation is refused.
    'operations/public-paths.ts',
    'upstream/options.ts',
  ],
  workers: [
    ...['gateway/gateway.ts', 'admin/application.ts', 'config/schema.ts'],
    // The workers' metrics are combined as those of one process are written.
    'observability/exposition.ts',
  ],
};

/** These put the rooms together, so they import every room. The files directly in src count as `composition`. */
const COMPOSING = ['composition', 'gateway', 'embedding', 'cli'];

const ROOMS = [
  ...[...COMPOSING, ...Object.keys(MAY_IMPORT), 'kernel', 'auth', 'idempotency', 'operations'],
  ...['upstream', 'observability', 'admin', 'sandbox'],
];

/** Libraries that one room imports, and no other. */
const HOMES: readonly [library: string, home: RegExp][] = [
  ['ioredis', /^idempotency\/stores\/redis\//],
  ['redlock', /^idempotency\/stores\/redis\//],
  ['cluster-key-slot', /^idempotency\/stores\/redis\//],
  ['undici', /^upstream\//],
  ['http-proxy-middleware', /^upstream\//],
  ['proxy-addr', /^gateway\//],
  ['rate-limiter-flexible', /^gateway\//],
  ['pino', /^observability\//],
  ['@opentelemetry', /^observability\//],
  ['prom-client', /^observability\//],
  ['node:sqlite', /^(?:idempotency\/stores\/sqlite|sandbox)\//],
  ['yaml', /^(?:config|auth)\//],
];

/** The engine and the store contract: the room's own files, without the schema of its options, which needs zod. */
const isEngine = (path: string) => /^idempotency\/[^/]+\.ts$/.test(path) && path !== 'idempotency/options.ts';
/** No HTTP server, no database, no package. */
const mayEngineImport = (to: string) =>
  isOurs(to) ? !/\/(?:stores|http|doubt)\//.test(to) : /^node:(?:crypto|stream|timers\/promises)$/.test(to);

const isOurs = (specifier: string) => specifier.endsWith('.ts');
const roomOf = (path: string) => (path.includes('/') ? (path.split('/')[0] as string) : 'composition');

function importsOf(path: string, text: string): string[] {
  const found = [...text.matchAll(/(?:from|import\()\s*'([^']+)'/g), ...text.matchAll(/^import '([^']+)'/gm)];
  return found.map(([, to = '']) => (to.startsWith('.') ? posix.join(posix.dirname(path), to) : to));
}

/** Every TypeScript file under a folder. */
export function sourceFiles(folder: string): SourceFile[] {
  return globSync('**/*.{ts,tsx}', { cwd: folder }).map((file) => {
    const path = file.split(sep).join('/');
    return { path, imports: importsOf(path, readFileSync(`${folder}/${path}`, 'utf8')) };
  });
}

function whyForbidden(path: string, to: string): string | undefined {
  const room = roomOf(path);
  const home = HOMES.find(([library]) => to === library || to.startsWith(`${library}/`));
  if (home && !home[1].test(path)) return `${home[0]} is imported by other rooms only`;
  if (isEngine(path) && !mayEngineImport(to)) return 'the engine knows no HTTP server, database or package';
  // The options that every section with a Redis has in common.
  if (path === 'kernel/redis-options.ts' && to === 'zod') return undefined;
  if (room === 'kernel' && !to.startsWith('node:') && !(isOurs(to) && roomOf(to) === 'kernel'))
    return 'the kernel imports only Node and itself';
  const isForeign = isOurs(to) && roomOf(to) !== room && roomOf(to) !== 'kernel';
  if (isForeign && !COMPOSING.includes(room) && !MAY_IMPORT[room]?.includes(to))
    return 'rooms import the kernel and not each other';
  return undefined;
}

/** One line for each import that a fence forbids, and for each fence that no longer fences anything. */
export function fenceOffences(files: readonly SourceFile[]): string[] {
  const offences = files.flatMap(({ path, imports }) =>
    imports.flatMap((to) => {
      const why = whyForbidden(path, to);
      return why ? [`src/${path} imports ${to}: ${why}`] : [];
    }),
  );
  const all = files.flatMap(({ imports }) => imports);
  const idle = [
    ...ROOMS.filter((room) => !files.some(({ path }) => roomOf(path) === room)),
    ...HOMES.map(([library]) => library).filter((library) => !all.some((to) => to.startsWith(library))),
    ...(files.some(({ path }) => isEngine(path)) ? [] : ['the engine']),
  ];
  return [...offences, ...idle.map((name) => `scripts/fences.ts: nothing in src is ${name}`)];
}

/** What the console's page may import beside its own files. The contract is types only. */
const OF_PAGE = ['preact', 'preact/hooks', 'uplot', '../src/admin/console/contract.ts'];

/** One line for each import of the console's page that would bring something else into browsers. */
export function pageOffences(files: readonly SourceFile[]): string[] {
  const isOwn = (to: string) => files.some(({ path }) => path === to);
  return files.flatMap(({ path, imports }) =>
    imports
      .filter((to) => !isOwn(to) && !OF_PAGE.includes(to))
      .map((to) => `console/${path} imports ${to}: the page is made of ${OF_PAGE.join(', ')} and itself`),
  );
}

if (import.meta.main) {
  const filesIn = (folder: string) => sourceFiles(fileURLToPath(new URL(`../${folder}`, import.meta.url)));
  const offences = [...fenceOffences(filesIn('src')), ...pageOffences(filesIn('console'))];
  for (const offence of offences) process.stderr.write(`${offence}\n`);
  process.exitCode = offences.length > 0 ? 1 : 0;
}
