import { expect } from 'vitest';

/** One test for a table: checks every row, and fails with the names of those that are wrong and why. */
export function eachRow<T>(rows: readonly T[], nameOf: (row: T) => unknown, check: (row: T) => void): void {
  expect(rows.length).toBeGreaterThan(0);
  const wrong = rows.flatMap((row) => {
    try {
      check(row);
      return [];
    } catch (error) {
      return [`${nameOf(row)}: ${(error as Error).message}`];
    }
  });
  expect(wrong.join('\n\n')).toBe('');
}
