import { expect } from 'vitest';

/** What tells a row from the others when it fails: its beginning. */
const nameOf = (row: unknown): string => `${JSON.stringify(row)}`.slice(0, 120);

/** One test for a table: checks every row, and fails with the rows that are wrong and why. */
export function eachRow<T>(rows: readonly T[], check: (row: T) => void): void {
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
export async function eachRowInTurn<T>(rows: readonly T[], check: (row: T) => Promise<void>): Promise<void> {
  expect(rows.length).toBeGreaterThan(0);
  const wrong: string[] = [];
  for (const row of rows)
    await check(row).catch((error: Error) => wrong.push(`${nameOf(row)}: ${error.message}`));
  expect(wrong.join('\n\n')).toBe('');
}
