import { existsSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { guards, sourceWithout, testOf } from '../../scripts/guards.ts';
import { ROOT, read } from '../support/repository.ts';

describe('the guards that `npm run mutants` takes out', () => {
  it('are in the sources once each, and have a test', () => {
    for (const guard of guards) {
      const [without, [file, , text, replacement], [, named]] = guard;
      expect.soft(() => sourceWithout(read(file), guard)).not.toThrow();
      expect.soft(replacement, without).not.toBe(text);
      // Titles of tables are filled in when they run, so only the file can be checked here.
      expect.soft(existsSync(`${ROOT}${testOf(guard)}`), `${testOf(guard)}: ${without}`).toBe(true);
      expect.soft(named, without).not.toBe('');
    }
  });

  it('are one promise each, and few enough to be removed before each release', () => {
    expect(new Set(guards.map(([without]) => without)).size).toBe(guards.length);
    expect(guards.length).toBeLessThanOrEqual(125);
  });

  it('quote a part of one line, which can move within its file', () => {
    for (const [without, [, , text]] of guards) expect.soft(text, without).toMatch(/^\S.{1,60}\S$/);
  });
});
