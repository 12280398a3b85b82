const UNITS_MS: Record<string, number> = {
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
};

/** The milliseconds of a duration such as `500ms`, `30s`, `15m`, `24h` or `30d`, if the text is one. */
export function durationMs(text: string): number | undefined {
  const [, digits, unit = ''] = /^(\d{1,9})(ms|s|m|h|d)$/.exec(text) ?? [];
  const unitMs = UNITS_MS[unit];
  return digits === undefined || unitMs === undefined ? undefined : Number(digits) * unitMs;
}
