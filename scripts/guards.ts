/**
 * The guards of the promise. `npm run mutants` takes them out one by one; `npm run generate` writes the tables of their
 * decision record.
 */
import { accessGuards } from './guards/access.ts';
import { copyGuards } from './guards/copy.ts';
import { embeddingGuards } from './guards/embedding.ts';
import { engineGuards } from './guards/engine.ts';
import { fenceGuards } from './guards/fence.ts';
import { gatewayGuards } from './guards/gateway.ts';
import { redisGuards } from './guards/redis.ts';
import { requestGuards } from './guards/requests.ts';
import { sqliteGuards } from './guards/sqlite.ts';
import { targetGuards } from './guards/targets.ts';

/** One guard of the promise, the mutation that removes it, and the test that must fail then. */
export interface Guard {
  /** What goes wrong without the guard, for ADR 10 and the output. */
  without: string;
  file: string;
  /** Occurs exactly once in the file. */
  text: string;
  replacement: string;
  test: string;
  /** Which of the file's tests, by a part of their full names: `suite > test`. */
  named: string;
}

export const GUARDS_DOCUMENT = 'docs/adr/0010-guards-and-their-tests.md';

/** By the heading of their table in the document. */
const sections: Readonly<Record<string, readonly Guard[]>> = {
  'The last-moment fence': fenceGuards,
  'The engine': engineGuards,
  'The gateway': gatewayGuards,
  Requests: requestGuards,
  SQLite: sqliteGuards,
  Redis: redisGuards,
  Embedding: embeddingGuards,
  'The copy to another store': copyGuards,
  Access: accessGuards,
  Targets: targetGuards,
};

export const guards: readonly Guard[] = Object.values(sections).flat();

const cell = (text: string): string => text.replaceAll('|', '\\|');
const row = ({ without, file, test, named }: Guard): string =>
  `| ${cell(without)} | \`${file}\` | \`${test}\`: ${cell(named)} |\n`;
const table = (rows: readonly Guard[]): string =>
  `| without the guard | taken out of | noticed by |\n|---|---|---|\n${rows.map(row).join('')}`;

/** The document with the tables as they should be. Its other text stays. */
export function withGuardTables(document: string): string {
  let text = document;
  for (const [heading, rows] of Object.entries(sections)) {
    const old = new RegExp(`(?<=\\n## ${heading}\\n(?:(?!\\||## ).*\\n)*)(?:\\|.*\\n)+`);
    if (!old.test(text)) throw new Error(`${GUARDS_DOCUMENT} has no table under "## ${heading}"`);
    text = text.replace(old, () => table(rows));
  }
  return text;
}
