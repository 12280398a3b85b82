/**
 * `npm run pages`: bundles the pages of the admin port, each once for each state of its sources: the console (folder `console`)
 * into `dist/console`, and the merchants' interface (folder `interface-page`, and `config/openapi.yaml`) into `dist/docs`.
 * `npm start`, `npm test` and `npm run build` begin with it.
 */
import { createHash, hash } from 'node:crypto';
import { globSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join, parse as parsePath } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type BuildOptions, build } from 'esbuild';
import { parse as parseYaml } from 'yaml';

const root = fileURLToPath(new URL('..', import.meta.url));
const DIST = join(root, 'dist');
const OPENAPI = 'config/openapi.yaml';

interface Page {
  /** Its folder in `dist`, and its path on the admin port. */
  name: string;
  /** The folder with the page (`index.html`), its script (`main`) and its style sheet (`style.css`). */
  source: string;
  main: string;
  options: Pick<BuildOptions, 'format' | 'jsx' | 'jsxImportSource'>;
  /** Files of packages that browsers get as they were published. */
  published: readonly string[];
  /** A file that is served beside the page and is in it. */
  document?: string;
}

const CONSOLE: Page = {
  name: 'console',
  source: 'console',
  main: 'main.tsx',
  options: { format: 'esm', jsx: 'automatic', jsxImportSource: 'preact' },
  published: [],
};

const INTERFACE: Page = {
  name: 'docs',
  source: 'interface-page',
  main: 'main.ts',
  // Not a module: for browsers this page has no origin, and they load modules of their own origin only.
  options: { format: 'iife' },
  published: ['swagger-ui-dist/swagger-ui-bundle.js', 'swagger-ui-dist/swagger-ui.css'],
  document: OPENAPI,
};

/** Bundles the pages that are not up to date. Several processes may do this at once. */
export async function bundlePages(dist = DIST): Promise<void> {
  await Promise.all([CONSOLE, INTERFACE].map((page) => bundle(page, join(dist, page.name))));
}

/** Writes `index.html`, `assets/NAME-HASH.EXTENSION` and the document into the folder, unless the bundle of these sources is there. */
async function bundle(page: Page, folder: string): Promise<void> {
  const state = stateOfSources(page);
  if (stateOfBundle(folder) === state) return;
  const { outputFiles } = await build({
    absWorkingDir: root,
    entryPoints: [
      { in: `${page.source}/${page.main}`, out: 'app' },
      { in: `${page.source}/style.css`, out: 'app' },
    ],
    entryNames: '[name]-[hash]',
    outdir: folder,
    write: false,
    bundle: true,
    minify: true,
    target: ['chrome123', 'firefox120', 'safari17.5'],
    // THIRD-PARTY-LICENSES.md of the package has them.
    legalComments: 'none',
    logLevel: 'warning',
    ...page.options,
  });
  const assets = new Map(outputFiles.map(({ path, contents }) => [basename(path), contents]));
  for (const path of page.published) assets.set(...publishedAsset(path));
  mkdirSync(join(folder, 'assets'), { recursive: true });
  for (const [name, contents] of assets) put(join(folder, 'assets', name), contents);
  let html = readFileSync(join(root, page.source, 'index.html'), 'utf8');
  for (const name of assets.keys()) html = html.replace(name.replace(/-\w{8}\./, '.'), name);
  if (page.document !== undefined) {
    const text = readFileSync(join(root, page.document), 'utf8');
    const { name, base } = parsePath(page.document);
    const json = JSON.stringify(parseYaml(text));
    put(join(folder, base), text);
    put(join(folder, `${name}.json`), json);
    // No text of the document may end the element that it is in.
    html = html.replace('{}', () => json.replaceAll('<', '\\u003c'));
  }
  // The page last, because it refers to the others, and says that they are there.
  put(join(folder, 'index.html'), html.replace('</html>', `</html>\n<!-- ${state} -->`));
  for (const old of globSync('*', { cwd: join(folder, 'assets') }))
    if (!assets.has(old)) rmSync(join(folder, 'assets', old), { force: true });
}

/** What the bundle is made of: this script, the page's sources, and the versions of the packages. */
function stateOfSources({ source, document }: Page): string {
  const names = [
    'scripts/pages.ts',
    ...globSync(`${source}/**/*.*`, { cwd: root }).sort(),
    ...(document === undefined ? [] : [document]),
    'package-lock.json',
  ];
  const digest = createHash('sha256');
  for (const name of names) digest.update(`${name}\n`).update(readFileSync(join(root, name)));
  return digest.digest('hex');
}

function stateOfBundle(folder: string): string | undefined {
  try {
    return /<!-- (\w{64}) -->/.exec(readFileSync(join(folder, 'index.html'), 'utf8'))?.[1];
  } catch {
    return undefined;
  }
}

/** A file of a package under a name with its hash, without the name of a source map, which is not served. */
function publishedAsset(path: string): [name: string, contents: Buffer] {
  const text = readFileSync(join(root, 'node_modules', path), 'utf8');
  const contents = Buffer.from(text.replace(/\n\/[/*]# sourceMappingURL=.*\n?$/, '\n'));
  const { name, ext } = parsePath(path);
  return [`${name}-${hash('sha256', contents).slice(0, 8).toUpperCase()}${ext}`, contents];
}

/** Nobody reads half of a file. */
function put(path: string, contents: string | Uint8Array): void {
  const draft = `${path}.${process.pid}`;
  writeFileSync(draft, contents);
  renameSync(draft, path);
}

if (import.meta.main) await bundlePages();
