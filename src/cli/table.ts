/** Lines of text, with each column as wide as its widest cell. */
export function table(head: string[], rows: (string | undefined)[][]): string {
  const all = [head, ...rows].map((row) => row.map((cell = '') => printable(cell)));
  const widths = head.map((_, column) => Math.max(...all.map((row) => (row[column] ?? '').length)));
  const line = (row: string[]) => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join('  ');
  return all.map((row) => `${line(row).trimEnd()}\n`).join('');
}

/** Replaces control characters, because terminals execute them and merchants choose some of these texts. */
export const printable = (text: string): string => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, '?');
