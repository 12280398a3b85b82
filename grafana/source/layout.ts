import type { PlacedPanel, Row } from './model.ts';

/** Columns of Grafana's grid. */
const COLUMNS = 24;

/** Gives every panel its number and its position: from left to right, row by row, wrapped at the right edge. */
export function layOut(rows: readonly Row[]): PlacedPanel[] {
  const placed: PlacedPanel[] = [];
  let y = 0;
  for (const { title, panels } of rows) {
    const head = { type: 'row' as const, title, collapsed: false, panels: [] };
    placed.push({ ...head, id: placed.length + 1, gridPos: { x: 0, y, w: COLUMNS, h: 1 } });
    y++;
    let x = 0;
    let lineHeight = 0;
    for (const { width, height, panel } of panels) {
      if (x + width > COLUMNS) {
        y += lineHeight;
        x = 0;
        lineHeight = 0;
      }
      placed.push({ ...panel, id: placed.length + 1, gridPos: { x, y, w: width, h: height } });
      x += width;
      lineHeight = Math.max(lineHeight, height);
    }
    y += lineHeight;
  }
  return placed;
}
