import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { guards } from '../../scripts/guards.ts';

const read = (path: string) => readFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), 'utf8');

describe('the guards that `npm run mutants` takes out', () => {
  it('are in the sources once each, and have a test', () => {
    expect(guards.length).toBeGreaterThan(180);
    for (const { without, file, text, replacement, test, named } of guards) {
      expect.soft(read(file).split(text).length - 1, `times in ${file}: ${without}`).toBe(1);
      expect.soft(replacement, without).not.toBe(text);
      // Titles of tables are filled in when they run, so only the file can be checked here.
      expect.soft(read(test), `${test}: ${without}`).toMatch(/from 'vitest'|storeContract/);
      expect.soft(named, without).not.toBe('');
    }
  });

  it('have a line each, and no line twice', () => {
    expect(new Set(guards.map(({ without }) => without)).size).toBe(guards.length);
  });
});
