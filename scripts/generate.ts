/**
 * `npm run generate`: writes every file, and every table of a document, that is made from the sources. A test finds those that are
 * stale.
 */
import { existsSync, globSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { textsOf } from '../grafana/generate.ts';
import { configJsonSchema } from '../src/config/json-schema.ts';
import { answersTable } from './generate/answers-table.ts';
import { logTable } from './generate/log-table.ts';
import { metricsReference } from './generate/metrics.ts';
import { type AlertPage, alertPage, withTexts } from './generate/rules.ts';
import { statesTable } from './generate/states-table.ts';
import { GUARDS_DOCUMENT, withGuardTables } from './guards.ts';
import { root } from './root.ts';

const file = (path: string) => join(root, path);
export const read = (path: string): string => readFileSync(file(path), 'utf8');

const TABLE = /(?<=<!-- npm run generate writes this table -->\n).*?(?=\n<!-- end of the table -->)/s;

function withTable(page: string, lines: readonly string[]): string {
  if (!TABLE.test(page)) throw new Error(`there is no place for the table ${lines[0]}`);
  return page.replace(TABLE, () => lines.join('\n'));
}

/** The pages of the runbook that are about an alert. */
export const alertPages = (): AlertPage[] =>
  globSync('docs/runbook/Oncegate*.md', { cwd: root }).map((path) => alertPage(read(path)));

/** By path: what the file must have, given what it has. */
export const GENERATED: ReadonlyMap<string, (text: string) => string> = new Map([
  ['config/gateway.schema.json', () => `${JSON.stringify(configJsonSchema(), undefined, 2)}\n`],
  ['config/prometheus.rules.yaml', (text) => withTexts(text, alertPages())],
  ['docs/architecture.md', (text) => withTable(text, statesTable())],
  ['docs/merchants.md', (text) => withTable(text, answersTable(read('config/openapi.yaml')))],
  ['docs/metrics.md', metricsReference],
  ['docs/operations.md', (text) => withTable(text, logTable())],
  [GUARDS_DOCUMENT, withGuardTables],
  ...[...textsOf()].map(([name, text]) => [`grafana/dashboards/${name}`, () => text] as const),
]);

if (import.meta.main)
  for (const [path, textFor] of GENERATED) {
    // A dashboard that is new has no file yet.
    const old = existsSync(file(path)) ? read(path) : '';
    const text = textFor(old);
    if (text === old) continue;
    writeFileSync(file(path), text);
    process.stdout.write(`written: ${path}\n`);
  }
