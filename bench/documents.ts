/**
 * `node bench/documents.ts` writes the tables of documents, between `<!-- bench:NAME -->` and `<!-- /bench -->`: those of
 * docs/performance.md and of the README from `bench/results.json`, those of docs/scaling.md from `bench/scaling.json`.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { capacityTables } from './capacity.ts';
import { cellTable, latencyTable, machineLine, shortTable, storeTable, targetTable } from './report.ts';
import type { Results } from './results.ts';
import type { ScalingResults } from './scaling-results.ts';

const file = (path: string) => fileURLToPath(new URL(`../${path}`, import.meta.url));

export const DOCUMENTS = ['README.md', 'docs/performance.md', 'docs/scaling.md'];

export const tables: Record<string, (results: Results) => string> = {
  machine: machineLine,
  targets: targetTable,
  cells: cellTable,
  latency: latencyTable,
  store: storeTable,
  short: shortTable,
};

/** The text of a document with its tables written from the results. */
export function documentText(path: string): string {
  const results: Results = JSON.parse(readFileSync(file('bench/results.json'), 'utf8'));
  const scaling: ScalingResults = JSON.parse(readFileSync(file('bench/scaling.json'), 'utf8'));
  return readFileSync(file(path), 'utf8').replace(
    /(<!-- bench:(\w+) -->\n)[\s\S]*?(<!-- \/bench -->)/g,
    (_, start: string, name: string, end: string) => {
      const table = tables[name]?.(results) ?? capacityTables[name]?.(scaling);
      if (table === undefined) throw new Error(`${path}: there is no table ${name}`);
      return `${start}${table}${end}`;
    },
  );
}

export function writeDocuments(): void {
  for (const path of DOCUMENTS) writeFileSync(file(path), documentText(path));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeDocuments();
