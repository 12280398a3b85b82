/**
 * The guards of the promise outside the rules, whose own test tries every wrong cell. `npm run mutants` takes them out one by one;
 * `npm run generate` writes the tables of their decision record.
 */
import { accessGuards, embeddingGuards } from './guards/access.ts';
import { engineGuards, executionGuards, fenceGuards } from './guards/engine.ts';
import { backendGuards, storeWatchGuards } from './guards/gateway.ts';
import type { Guard } from './guards/guard.ts';
import { cipherGuards, ledgerGuards } from './guards/ledger.ts';
import { postgresGuards } from './guards/postgres.ts';
import { requestGuards } from './guards/requests.ts';
import { copyGuards, redisGuards, sqliteGuards } from './guards/stores.ts';

export const GUARDS_DOCUMENT = 'docs/adr/0010-guards-and-their-tests.md';

/** By the heading of their table in the document. */
const sections: Readonly<Record<string, readonly Guard[]>> = {
  'The last-moment fence': fenceGuards,
  'The engine': engineGuards,
  'What became of an execution': executionGuards,
  'The ledger': ledgerGuards,
  Encryption: cipherGuards,
  Redis: redisGuards,
  PostgreSQL: postgresGuards,
  SQLite: sqliteGuards,
  'The copy to another store': copyGuards,
  'A store that forgot': storeWatchGuards,
  'The backend': backendGuards,
  Requests: requestGuards,
  Access: accessGuards,
  Embedding: embeddingGuards,
};

export const guards: readonly Guard[] = Object.values(sections).flat();

export const testOf = ([, , [test]]: Guard): string => `test/${test}.test.ts`;

const DECLARATION =
  /^( *)(?:(?:export|protected|async|static|readonly|get|const|class|function\*?|local) )*([\w#]+)/;

/** The numbers of the lines of what is declared as `name`: up to a line that is indented no further, but not to `): Type {`. */
function linesOf(lines: readonly string[], name: string): Set<number> {
  const found = new Set<number>();
  for (const [first, line] of lines.entries()) {
    const [, indent = '', declared] = DECLARATION.exec(line) ?? [];
    if (declared !== name) continue;
    const isBeyond = (text = 'the end') =>
      text !== '' && !text.startsWith(`${indent} `) && !/^ *[)}\]].*[({[]$/.test(text);
    found.add(first);
    for (let at = first + 1; !isBeyond(lines[at]); at++) found.add(at);
  }
  return found;
}

/**
 * The source of the guard's file without the guard.
 *
 * @throws {Error} if its text is not there exactly once
 */
export function sourceWithout(source: string, [, [file, within, text, replacement]]: Guard): string {
  const lines = source.split('\n');
  const searched = within === '' ? new Set(lines.keys()) : linesOf(lines, within);
  let count = 0;
  const mutated = lines.map((line, at) => {
    if (!searched.has(at)) return line;
    count += line.split(text).length - 1;
    return line.replace(text, () => replacement);
  });
  if (count !== 1) throw new Error(`${file} has ${count} times, within "${within}": ${text}`);
  return mutated.join('\n');
}

const cell = (text: string): string => text.replaceAll('|', '\\|');
const row = (guard: Guard): string => {
  const [without, [file, within], [, named]] = guard;
  const place = within === '' ? `\`${file}\`` : `\`${file}\`: \`${within}\``;
  return `| ${cell(without)} | ${place} | \`${testOf(guard)}\`: ${cell(named)} |\n`;
};
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
