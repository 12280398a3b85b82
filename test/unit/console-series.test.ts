import { describe, expect, it } from 'vitest';
import type { SeriesPoint } from '../../src/admin/console/contract.ts';
import { increases, quantile, readExposition } from '../../src/admin/console/exposition.ts';
import { EVERY_MS, LiveSeries } from '../../src/admin/console/series.ts';

const NAMES = new Set(['oncegate_requests_total']);
const exposition = (lines: string[]) => readExposition(lines.join('\n'), NAMES);

describe('what a counter has counted between two readings', () => {
  it('begins at 0 for a new series, and again for one that has fallen', () => {
    const before = exposition([
      'oncegate_requests_total{operation="a",outcome="executed"} 5',
      'oncegate_requests_total{operation="b",outcome="executed"} 100',
    ]);
    const after = exposition([
      '# HELP oncegate_requests_total Requests',
      'oncegate_requests_total{operation="a",outcome="executed"} 7',
      'oncegate_requests_total{operation="b",outcome="executed"} 3',
      'oncegate_requests_total{operation="a",outcome="replayed"} 4',
      'oncegate_requests_totally{operation="a",outcome="replayed"} 4',
      'oncegate_requests_total{operation="a",outcome="gone"} x',
    ]);
    expect([...increases(before, after, 'oncegate_requests_total', 'outcome')]).toEqual([
      ['executed', 5],
      ['replayed', 4],
    ]);
  });
});

describe('a quantile', () => {
  const buckets = new Map([
    ['1', 50],
    ['2', 100],
    ['4', 100],
    ['+Inf', 100],
  ]);

  it('is estimated as Prometheus does', () => {
    expect([0.25, 0.5, 0.75, 1].map((q) => quantile(buckets, q))).toEqual([0.5, 1, 1.5, 2]);
    expect(
      quantile(
        new Map([
          ['1', 0],
          ['+Inf', 10],
        ]),
        0.5,
      ),
    ).toBe(1);
    expect(
      quantile(
        new Map([
          ['1', 0],
          ['+Inf', 0],
        ]),
        0.5,
      ),
    ).toBe(undefined);
    expect(quantile(new Map(), 0.5)).toBe(undefined);
  });
});

describe('the live series', () => {
  /** A series on a clock of its own, whose samples the test takes by `tick`. */
  function open() {
    let nowMs = 0;
    let reads = 0;
    let executed = 0;
    const read = async () => {
      reads++;
      return `oncegate_requests_total{operation="a",outcome="executed"} ${executed}\n`;
    };
    const series = new LiveSeries(read, { wallMs: () => nowMs, monotonicMs: () => nowMs });
    const tick = async (ms = EVERY_MS) => {
      nowMs += ms;
      series.tick();
      await series.doubts();
    };
    return { series, tick, reads: () => reads, execute: (count: number) => (executed += count) };
  }
  const rates = (points: SeriesPoint[]) => points.map(({ perSecond }) => perSecond.executed);

  it('is sampled for a minute after it was looked at, and leaves a gap', async () => {
    const { series, tick, reads, execute } = open();
    expect(series.isSampling).toBe(false);
    series.look();
    await series.doubts();
    execute(4);
    for (let i = 0; i < 40; i++) await tick();
    expect(series.isSampling).toBe(false);
    expect(reads()).toBe(31);
    execute(100);
    series.look();
    await series.doubts();
    execute(2);
    await tick();
    const { points } = series.since(undefined);
    expect(rates(points)).toEqual([2, ...Array.from({ length: 29 }, () => 0), 1]);
    await tick(600_000);
  });

  it('keeps 15 minutes, and tells only what is new', async () => {
    const { series, tick } = open();
    for (let i = 0; i < 500; i++) {
      series.look();
      await tick();
    }
    const first = series.since(undefined);
    expect([first.points.length, first.replaces]).toEqual([450, true]);
    await tick();
    const next = series.since(first.cursor);
    expect([next.points.length, next.replaces]).toEqual([1, false]);
    for (const unknown of ['', 'x.1', `${first.cursor}0000000000000000`, first.cursor.replace('.', '')])
      expect(series.since(unknown).replaces, unknown).toBe(true);
    await tick(600_000);
  });

  it('has no point over a sample that is missing for long', async () => {
    const { series, tick, execute } = open();
    series.look();
    await series.doubts();
    execute(1000);
    await tick(50_000);
    expect(series.since(undefined).points).toEqual([]);
    await tick(600_000);
  });
});
