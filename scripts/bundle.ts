/**
 * Bundles the console's page, and the command with its packages, into `dist`, once for each state of their sources. `npm start`,
 * `npm test` and `npm run build` begin with it.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { globSync, readFileSync, rmSync } from 'node:fs';
import { join, relative } from 'node:path';
import { type BuildOptions, build, type Plugin } from 'esbuild';
import { put, stateIn, stateOf } from './bundle-files.ts';
import { bundlePages } from './pages.ts';
import { root } from './root.ts';

const common = {
  absWorkingDir: root,
  bundle: true,
  platform: 'node',
  target: 'node24.18',
  // THIRD-PARTY-LICENSES.md has them.
  legalComments: 'none',
  logLevel: 'warning',
  write: false,
} satisfies BuildOptions;

/**
 * Writes `main.js`, the bundles of its command and of its threads, and the other files that these read.
 *
 * @returns false: the command does not start
 */
export async function bundleCommand(dist = join(root, 'dist')): Promise<boolean> {
  const main = join(dist, 'main.js');
  const state = stateOf('{scripts/*bundle*.ts,src/**/*.*}');
  if (stateIn(main) === state) return true;
  const { outputFiles } = await build({
    ...common,
    outdir: dist,
    format: 'cjs',
    outExtension: { '.js': '.cjs' },
    entryPoints: {
      'command/run': 'src/cli/run.ts',
      'store/sqlite/writer-thread': 'src/store/sqlite/writer-thread.ts',
      'keys/key-file-thread': 'src/keys/key-file-thread.ts',
    },
    define: { 'import.meta.url': 'FILE_URL', 'import.meta.main': 'false' },
    banner: { js: "const FILE_URL = require('node:url').pathToFileURL(__filename).href;" },
  });
  for (const name of globSync('**/*.{lua,yaml}', { cwd: join(root, 'src') }))
    put(join(dist, name), readFileSync(join(root, 'src', name)));
  let command = '';
  for (const { path, text } of outputFiles) {
    // ASCII is read fastest. esbuild leaves other characters in regular expressions and comments.
    const contents = text.replace(/[^\0-\x7f]/g, escaped);
    // By its contents: V8 would take the compiled code of another bundle with the same length.
    const digest = createHash('sha256').update(contents).digest('hex').slice(0, 16);
    const file = path.replace('run.cjs', `run-${digest}.cjs`);
    put(file, contents);
    if (file !== path) command = file;
  }
  const { status } = spawnSync(process.execPath, [join(root, 'scripts/compile-bundle.ts'), command], {
    env: {},
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const isCompiled = status === 0;
  // A mutant may not start, and its test must fail for that.
  if (!isCompiled) process.stderr.write('oncegate: the bundle does not start, and is left uncompiled\n');
  // Last, because it refers to the others, and says that they are there.
  put(main, `${await mainOf(relative(dist, command))}// ${state}\n`, 0o755);
  for (const old of globSync('command/*', { cwd: dist }))
    if (!join(dist, old).startsWith(command)) rmSync(join(dist, old), { force: true });
  return isCompiled;
}

const escaped = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** `src/main.ts`, which loads the bundle in place of the sources. */
async function mainOf(command: string): Promise<string> {
  const inPlaceOfSources: Plugin = {
    name: 'bundle',
    setup({ onResolve, onLoad }) {
      onResolve({ filter: /^\.\/cli\/run\.ts$/ }, () => ({ path: command, namespace: 'bundle' }));
      onLoad({ filter: /./, namespace: 'bundle' }, () => ({
        contents: `import { join } from 'node:path';
          import { loadBundle } from './src/lib/load-bundle.ts';
          export const { runCommand } = loadBundle(join(import.meta.dirname, '${command}')).exports;`,
        resolveDir: root,
      }));
    },
  };
  const { outputFiles } = await build({
    ...common,
    format: 'esm',
    entryPoints: ['src/main.ts'],
    plugins: [inPlaceOfSources],
  });
  return outputFiles[0]?.text ?? '';
}

if (import.meta.main) {
  await bundlePages();
  await bundleCommand();
}
