import { existsSync, globSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../src/config/load.ts';
import { problem, problemCodes } from '../../src/kernel/problem.ts';
import { Metrics } from '../../src/observability/metrics.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const read = (path: string) => readFileSync(`${ROOT}${path}`, 'utf8');
const DOCUMENTS = globSync(['*.md', 'docs/**/*.md'], { cwd: ROOT });

/** Codes in the first column of a table's rows. */
const codesIn = (markdown: string, column: number) =>
  markdown
    .split('\n')
    .filter((line) => line.startsWith('|'))
    .flatMap((line) => [...(line.split('|')[column] ?? '').matchAll(/`([a-z_]+)`/g)].map(([, code]) => code));

describe('documents', () => {
  it('docs/merchants.md explains every answer of the gateway, and no other', () => {
    expect([...codesIn(read('docs/merchants.md'), 1)].sort()).toEqual([...problemCodes].sort());
  });

  it('docs/merchants.md gives each answer its status', () => {
    const rows = read('docs/merchants.md')
      .split('\n')
      .filter((line) => line.startsWith('| `'));
    for (const row of rows) {
      const statuses = (row.split('|')[2] ?? '').split(',').map(Number);
      for (const [, code] of (row.split('|')[1] ?? '').matchAll(/`([a-z_]+)`/g)) {
        expect(statuses, code).toContain(problem(code as (typeof problemCodes)[number], '').status);
      }
    }
  });

  it('the README lists every answer but the one for our own failures', () => {
    const listed = codesIn(read('README.md').split('## The answers')[1] ?? '', 2).filter((code) =>
      problemCodes.includes(code as (typeof problemCodes)[number]),
    );
    expect([...listed].sort()).toEqual(problemCodes.filter((code) => code !== 'internal_error').sort());
  });

  it('docs/operations.md names metrics that there are', () => {
    const names = [...read('docs/operations.md').matchAll(/`(oncegate_[a-z_]+)/g)].map(
      ([, name = '']) => name,
    );
    const { registry } = new Metrics();
    expect(names.length).toBeGreaterThan(8);
    for (const name of names) expect(registry.getSingleMetric(name), name).toBeDefined();
  });

  it('docs/operations.md shows operations that are valid', () => {
    const [, example = ''] = read('docs/operations.md').match(/```yaml\n(operations:.*?)```/s) ?? [];
    const { operations } = parseConfig(`upstream: { url: "http://127.0.0.1:9000" }\n${example}`, {});
    expect(operations.map(({ name }) => name)).toEqual(['withdraw', 'refund']);
  });

  it('name files that there are', () => {
    expect(DOCUMENTS).toContain('docs/merchants.md');
    const missing = DOCUMENTS.flatMap((document) => {
      const files = read(document).matchAll(/`((?:src|test|scripts|bench|config|docs)\/[\w./-]+\.\w+)`/g);
      return [...files].map(([, file = '']) => file).filter((file) => !existsSync(`${ROOT}${file}`));
    });
    expect(missing).toEqual([]);
  });
});
