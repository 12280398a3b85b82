import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { expect, it } from 'vitest';
import { bundlePages } from '../../scripts/pages.ts';

const folder = fileURLToPath(new URL('../../dist/page', import.meta.url));
const MAX_GZIPPED_BYTES = 50_000;

const contentsOf = (pattern: string): string[] =>
  globSync(pattern, { cwd: folder }).map((name) => readFileSync(join(folder, name), 'utf8'));

it('the console’s page is smaller than 50 kB gzipped, and in three files', async () => {
  await bundlePages();
  const files = [...contentsOf('index.html'), ...contentsOf('assets/*')];
  expect(files).toHaveLength(3);
  const bytes = files.reduce((sum, text) => sum + gzipSync(text).length, 0);
  expect(bytes).toBeLessThan(MAX_GZIPPED_BYTES);
});

it('the console’s page needs nothing from the internet, and runs no text as code', async () => {
  await bundlePages();
  const [page = ''] = contentsOf('index.html');
  const [script = ''] = contentsOf('assets/*.js');
  const [style = ''] = contentsOf('assets/*.css');
  expect(script).toContain('Requests of the last minute');
  // The names of namespaces, which nobody fetches.
  const addresses = (script + style + page).match(/https?:\/\/[\w./-]+/g) ?? [];
  expect(addresses.filter((address) => !address.startsWith('http://www.w3.org/'))).toEqual([]);
  expect(script).not.toMatch(/\beval\(|new Function|document\.write/);
  expect(style).not.toContain('@import');
  expect(page).not.toMatch(/<style|style=|<script>|\son\w+=/);
  const sources = globSync('**/*.tsx', { cwd: fileURLToPath(new URL('../../src/console', import.meta.url)) });
  expect(sources.length).toBeGreaterThan(10);
  for (const name of sources)
    expect(readFileSync(new URL(`../../src/console/${name}`, import.meta.url), 'utf8'), name).not.toMatch(
      /innerHTML/i,
    );
});
