/**
 * Bundles the console's page, and the command with its packages, into `dist`, once for each state of their sources. `npm start`,
 * `npm test` and `npm run build` begin with it.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { globSync, readFileSync, rmSync } from 'node:fs';
import { join, relative } from 'node:path';
import { type BuildOptions, build, type Plugin } from 'rolldown';
import { put, stateIn, stateOf } from './bundle-files.ts';
import { bundlePages } from './pages.ts';
import { root } from './root.ts';

const ENTRIES = {
  'command/run': 'src/cli/run.ts',
  'store/sqlite/writer-thread': 'src/store/sqlite/writer-thread.ts',
  'keys/key-file-thread': 'src/keys/key-file-thread.ts',
};

const common = {
  cwd: root,
  platform: 'node',
  // It says where the compiler finds the types of packages, which are not to be bundled.
  tsconfig: false,
  logLevel: 'warn',
  write: false,
} satisfies BuildOptions;

const target = 'node24.18';
// One file each. THIRD-PARTY-LICENSES.md has the licences.
const output = { codeSplitting: false, comments: false } as const;

/**
 * Writes `main.js`, the bundles of its command and of its threads, and the other files that these read.
 *
 * @returns whether the command starts
 */
export async function bundleCommand(dist = join(root, 'dist')): Promise<boolean> {
  const main = join(dist, 'main.js');
  const state = stateOf('{scripts/*bundle*.ts,src/**/*.*}');
  if (stateIn(main) === state) return true;
  for (const name of globSync('**/*.{lua,yaml}', { cwd: join(root, 'src') }))
    put(join(dist, name), readFileSync(join(root, 'src', name)));
  let command = '';
  for (const [name, input] of Object.entries(ENTRIES)) {
    // ASCII is read fastest.
    const contents = (await bundled(input)).replace(/[^\0-\x7f]/g, escaped);
    // The name has a digest of the contents, because V8 compares only the length before it takes compiled code.
    const digest = createHash('sha256').update(contents).digest('hex').slice(0, 16);
    const isCommand = name === 'command/run';
    const file = join(dist, isCommand ? `${name}-${digest}.cjs` : `${name}.cjs`);
    put(file, contents);
    if (isCommand) command = file;
  }
  const { status } = spawnSync(process.execPath, [join(root, 'scripts/compile-bundle.ts'), command], {
    env: {},
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const isCompiled = status === 0;
  // A mutant's command may fail to start. Then its test must fail, and not the build.
  if (!isCompiled) process.stderr.write('oncegate: the bundle does not start, and is left uncompiled\n');
  // Last: if it exists, the other files are complete.
  put(main, `${await mainOf(relative(dist, command))}// ${state}\n`, 0o755);
  for (const old of globSync('command/*', { cwd: dist }))
    if (!join(dist, old).startsWith(command)) rmSync(join(dist, old), { force: true });
  return isCompiled;
}

const escaped = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** A program in one CommonJS file, for which V8 can load compiled code. */
async function bundled(input: string): Promise<string> {
  const define = { 'import.meta.url': 'FILE_URL', 'import.meta.main': 'false' };
  // For speed: V8 inlines constants. Each read of such a global calls a getter, and each read from `node:buffer` searches a hash table.
  const globals = `const { Buffer } = require('node:buffer');
const { performance } = require('node:perf_hooks');
const process = require('node:process');`;
  const banner = `const FILE_URL = require('node:url').pathToFileURL(__filename).href;\n${globals}`;
  const { output: files } = await build({
    ...common,
    input,
    transform: { target, define },
    output: { ...output, format: 'cjs', banner },
  });
  return files[0].code;
}

/** `src/main.ts`, which loads the bundle in place of the sources. */
async function mainOf(command: string): Promise<string> {
  const inPlaceOfSources: Plugin = {
    name: 'bundle',
    load(id) {
      if (id !== join(root, 'src/cli/run.ts')) return null;
      return `import { join } from 'node:path';
        import { loadBundle } from '../lib/load-bundle.ts';
        export const { runCommand } = loadBundle(join(import.meta.dirname, '${command}')).exports;`;
    },
  };
  const { output: files } = await build({
    ...common,
    input: 'src/main.ts',
    plugins: [inPlaceOfSources],
    transform: { target },
    output: { ...output, format: 'esm' },
  });
  return files[0].code;
}

if (import.meta.main) {
  await bundlePages();
  await bundleCommand();
}
