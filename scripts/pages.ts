/**
 * `npm run pages`: bundles the console's page (folder `src/console`) into `dist/page`, once for each state of its sources.
 * `npm start`, `npm test` and `npm run build` begin with it.
 */
import { createHash } from 'node:crypto';
import { globSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'rolldown';
import { put, stateIn, stateOf } from './bundle-files.ts';
import { root } from './root.ts';

/** All browsers of the target read these as they are. */
const STYLES = ['node_modules/uplot/dist/uPlot.min.css', 'src/console/style.css'];

/** Writes `index.html` and `assets/NAME-HASH.EXTENSION`, unless the bundle of these sources is there. Several processes may do this at once. */
export async function bundlePages(dist = join(root, 'dist')): Promise<void> {
  const folder = join(dist, 'page');
  const state = stateOf('{scripts/pages.ts,src/console/**/*.*}');
  if (stateIn(join(folder, 'index.html')) === state) return;
  const { output } = await build({
    cwd: root,
    input: 'src/console/main.tsx',
    tsconfig: false,
    transform: { target: ['chrome123', 'firefox120', 'safari17.5'], jsx: { importSource: 'preact' } },
    // THIRD-PARTY-LICENSES.md of the package has the licences.
    output: { format: 'esm', codeSplitting: false, minify: true, comments: false },
    logLevel: 'warn',
    write: false,
  });
  const style = STYLES.map((name) => readFileSync(join(root, name), 'utf8')).join('\n');
  const assets = new Map([named('app.js', output[0].code), named('app.css', style)]);
  for (const [name, contents] of assets) put(join(folder, 'assets', name), contents);
  let html = readFileSync(join(root, 'src/console/index.html'), 'utf8');
  for (const name of assets.keys()) html = html.replace(name.replace(/-\w{8}\./, '.'), name);
  // The page last, because it refers to the others, and says that they are there.
  put(join(folder, 'index.html'), html.replace('</html>', `</html>\n<!-- ${state} -->`));
  for (const old of globSync('*', { cwd: join(folder, 'assets') }))
    if (!assets.has(old)) rmSync(join(folder, 'assets', old), { force: true });
}

/** By its contents, so that browsers may keep it for ever. */
function named(name: string, contents: string): [string, string] {
  const digest = createHash('sha256').update(contents).digest('hex').slice(0, 8);
  return [name.replace('.', `-${digest}.`), contents];
}

if (import.meta.main) await bundlePages();
