/**
 * `npm run pages`: bundles the console's page (folder `src/console`) into `dist/page`, once for each state of its sources.
 * `npm start`, `npm test` and `npm run build` begin with it.
 */
import { globSync, readFileSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import { build } from 'esbuild';
import { put, stateIn, stateOf } from './bundle-files.ts';
import { root } from './root.ts';

/** Writes `index.html` and `assets/NAME-HASH.EXTENSION`, unless the bundle of these sources is there. Several processes may do this at once. */
export async function bundlePages(dist = join(root, 'dist')): Promise<void> {
  const folder = join(dist, 'page');
  const state = stateOf('{scripts/pages.ts,src/console/**/*.*}');
  if (stateIn(join(folder, 'index.html')) === state) return;
  const { outputFiles } = await build({
    absWorkingDir: root,
    entryPoints: [
      { in: 'src/console/main.tsx', out: 'app' },
      { in: 'src/console/style.css', out: 'app' },
    ],
    entryNames: '[name]-[hash]',
    outdir: folder,
    write: false,
    bundle: true,
    minify: true,
    format: 'esm',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    target: ['chrome123', 'firefox120', 'safari17.5'],
    // THIRD-PARTY-LICENSES.md of the package has them.
    legalComments: 'none',
    logLevel: 'warning',
  });
  const assets = new Map(outputFiles.map(({ path, contents }) => [basename(path), contents]));
  for (const [name, contents] of assets) put(join(folder, 'assets', name), contents);
  let html = readFileSync(join(root, 'src/console/index.html'), 'utf8');
  for (const name of assets.keys()) html = html.replace(name.replace(/-\w{8}\./, '.'), name);
  // The page last, because it refers to the others, and says that they are there.
  put(join(folder, 'index.html'), html.replace('</html>', `</html>\n<!-- ${state} -->`));
  for (const old of globSync('*', { cwd: join(folder, 'assets') }))
    if (!assets.has(old)) rmSync(join(folder, 'assets', old), { force: true });
}

if (import.meta.main) await bundlePages();
