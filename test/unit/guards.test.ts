import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { guards } from '../../scripts/guards.ts';

const read = (path: string) => readFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), 'utf8');

const TABLE = 'docs/adr/0010-guards-and-their-tests.md';

describe('the guards that `npm run mutants` takes out', () => {
  it.each(guards.map((guard) => [guard.without, guard] as const))(
    'without its guard %s: the guard is in the sources once',
    (_, { file, text, replacement, test, named }) => {
      expect(read(file).split(text)).toHaveLength(2);
      expect(replacement).not.toBe(text);
      // Titles of tables are filled in when they run, so only the file can be checked here.
      expect(read(test)).toMatch(/from 'vitest'|storeContract/);
      expect(named).not.toBe('');
    },
  );

  it('have a line each, and no line twice', () => {
    expect(new Set(guards.map(({ without }) => without)).size).toBe(guards.length);
  });

  it(`are those of ${TABLE}`, () => {
    const rows = read(TABLE)
      .split('\n')
      .filter((line) => line.startsWith('| ') && line.includes('`test/'));
    const cell = (text: string) => text.replaceAll('|', '\\|');
    expect(rows).toEqual(
      guards.map(
        ({ without, file, test, named }) =>
          `| ${cell(without)} | \`${file}\` | \`${test}\`: ${cell(named)} |`,
      ),
    );
  });
});
