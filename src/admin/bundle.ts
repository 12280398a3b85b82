import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { RequestHandler } from 'express';
import { refuse } from './problems.ts';

/** With a hash of its contents in its name, a file never changes. */
const ASSET = /^[\w.-]+-[A-Za-z0-9]{8,}\.(js|css|svg|png|ico|woff2|map)$/;

const TYPES: Readonly<Record<string, string>> = {
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
  png: 'image/png',
  ico: 'image/x-icon',
  woff2: 'font/woff2',
  map: 'application/json',
};

/** A page and its files, as `npm run pages` writes them. */
export interface Bundle {
  /** By name: `index.html` and what is beside it. */
  files: ReadonlyMap<string, Buffer>;
  /** By name. */
  assets: ReadonlyMap<string, { type: string; bytes: Buffer }>;
}

/** The folder of a page: in the repository it is in `dist`, in the compiled package beside `admin`. */
export const bundleFolder = (name: string): string =>
  fileURLToPath(
    new URL(import.meta.url.endsWith('.ts') ? `../../dist/${name}/` : `../${name}/`, import.meta.url),
  );

/**
 * Reads a whole bundle when it is first asked for, so that a request can name only files that were there. The function returns
 * undefined while the bundle is not built.
 */
export function bundleReader(folder: string): () => Bundle | undefined {
  let bundle: Bundle | undefined;
  return () => {
    try {
      bundle ??= readBundle(folder);
    } catch {
      // The page says how to build it.
    }
    return bundle;
  };
}

function readBundle(folder: string): Bundle {
  const files = readdirSync(folder, { withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ name }) => [name, readFileSync(`${folder}/${name}`)] as const);
  const assets = readdirSync(`${folder}/assets`).flatMap((name) => {
    const [, extension = ''] = ASSET.exec(name) ?? [];
    const type = TYPES[extension];
    if (type === undefined) return [];
    return [[name, { type, bytes: readFileSync(`${folder}/assets/${name}`) }] as const];
  });
  // The page is written last.
  const bundle = { files: new Map(files), assets: new Map(assets) };
  if (!bundle.files.has('index.html')) throw new Error('index.html is missing');
  return bundle;
}

/** `/assets/:name`. Browsers keep what it sends. */
export const sendAsset =
  (read: () => Bundle | undefined): RequestHandler<{ name: string }> =>
  ({ params: { name } }, res) => {
    const asset = read()?.assets.get(name);
    if (!asset) return refuse(res, 'not_found', 'The page has no such file. Load it again.');
    res.set({ 'Content-Type': asset.type, 'Cache-Control': 'public, max-age=31536000, immutable' });
    res.send(asset.bytes);
  };
