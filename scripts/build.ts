/**
 * `npm run build [FOLDER]`: compiles the library of the package to dist or to FOLDER, and bundles console and command there. The
 * command reads the manifest beside that folder.
 */
import { spawnSync } from 'node:child_process';
import { globSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { transform } from 'rolldown/utils';
import { bundleCommand } from './bundle.ts';
import { licences } from './licences.ts';
import { bundlePages } from './pages.ts';
import { root } from './root.ts';

const dist = resolve(process.argv[2] ?? join(root, 'dist'));

rmSync(dist, { recursive: true, force: true });
const compiler = join(root, 'node_modules', '.bin', 'tsc');
const options = ['-p', 'tsconfig.build.json', '--outDir', dist];
const { status } = spawnSync(compiler, options, { cwd: root, stdio: 'inherit' });
if (status !== 0) process.exit(status ?? 1);
// The compiler rewrites these names in the JavaScript only.
for (const name of globSync('**/*.d.ts', { cwd: dist })) {
  const declarations = readFileSync(join(dist, name), 'utf8');
  writeFileSync(join(dist, name), declarations.replace(/(['"])(\.[^'"]*)\.ts\1/g, '$1$2.js$1'));
}
await writeEntry();
await bundlePages(dist);
writeFileSync(join(dist, 'THIRD-PARTY-LICENSES.md'), licences());
if (!(await bundleCommand(dist))) process.exit(1);
// For oncegate_build_info. The image's build has no repository: there the variable says it.
const { stdout } = spawnSync('git', ['rev-parse', 'HEAD'], { cwd: root, encoding: 'utf8' });
const commit = process.env.ONCEGATE_COMMIT || stdout?.trim();
if (commit) writeFileSync(join(dist, 'commit'), `${commit}\n`);

/**
 * Writes what `import` and `require` load. It loads the library only on a Node that can run it: on an older one the imports of the library
 * would fail first, with an error that says nothing of Node. So it is CommonJS, and names the exports for those who import it.
 */
async function writeEntry(): Promise<void> {
  const source = readFileSync(join(root, 'src', 'node-version.ts'), 'utf8').replace('export ', '');
  const { code } = await transform('node-version.ts', source, { target: 'node14' });
  const names = Object.keys(await import('../src/index.ts'));
  const entry = `${code}
const sentence = sentenceForOldNode();
if (sentence) throw new Error(sentence);
module.exports = require('./index.js');
// Node finds the names for import here.
0 && (module.exports = { ${names.join(', ')} });
`;
  writeFileSync(join(dist, 'entry.cjs'), entry);
  // A CommonJS program may not name the types of an ES module without this, by the compiler's rules for older versions of Node.
  const asModule = `{ 'resolution-mode': 'import' }`;
  const declarations = `type Exports = typeof import('./index.js', { with: ${asModule} });
export type * from './index.js' with ${asModule};
${names.map((name) => `export declare const ${name}: Exports['${name}'];`).join('\n')}
`;
  writeFileSync(join(dist, 'index.d.cts'), declarations);
}
