import { expect, it } from 'vitest';
import { durationMs } from '../../src/kernel/duration.ts';

it('a duration is a whole number and a unit', () => {
  const durations = {
    '0s': 0,
    '500ms': 500,
    '30s': 30_000,
    '15m': 900_000,
    '24h': 86_400_000,
    '30d': 2_592_000_000,
  };
  for (const [text, ms] of Object.entries(durations)) expect(durationMs(text), text).toBe(ms);
  for (const text of ['', '24', 'h', '1.5h', '-1h', '1 h', '1H', '1w', '9999999999d', 'P1D'])
    expect(durationMs(text), text).toBe(undefined);
});
