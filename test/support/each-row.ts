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

/** The same for checks that take time: one row after the other. */
export async function eachRowInTurn<T>(
  rows: readonly T[],
  nameOf: (row: T) => unknown,
  check: (row: T) => Promise<void>,
): Promise<void> {
  expect(rows.length).toBeGreaterThan(0);
  const wrong: string[] = [];
  for (const row of rows)
    await check(row).catch((error: Error) => wrong.push(`${nameOf(row)}: ${error.message}`));
  expect(wrong.join('\n\n')).toBe('');
}
