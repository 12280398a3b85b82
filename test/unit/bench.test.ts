import { describe, expect, it } from 'vitest';
import { capacityTables } from '../../bench/capacity.ts';
import { quietLine } from '../../bench/report.ts';
import type { CellRun, Results } from '../../bench/results.ts';
import type { ScalingResults } from '../../bench/scaling-results.ts';
import { targetsOf } from '../../bench/targets.ts';
import { NODE_FLAGS, NODE_OPTIONS } from '../../scripts/node-flags.ts';
import { read } from '../support/repository.ts';

describe('the plans of docs/scaling.md', () => {
  it('are calculated from what was measured', () => {
    const run = (deployment: string, perSecond: number, cpuUs: number, storeCpuUs: number, more = {}) => ({
      ...{ round: 1, deployment, work: 'first', requests: 1, wrong: 0, logBytes: 400, ...more },
      ...{ perSecond, cpuUs, storeCpuUs, diskBytes: 5000, networkBytes: 1600, p50Ms: 1, p99Ms: 2 },
    });
    const paced = ([250, 1000] as const).flatMap((ratePerS) => [
      run('redis', ratePerS, 200, 50, { ratePerS }),
      run('sqlite', ratePerS, 400, 0, { ratePerS }),
    ]);
    const full = [run('redis', 8000, 100, 40), run('sqlite', 6000, 150, 0)];
    const others = [run('cluster', 7000, 110, 46)];
    const size = (deployment: string, recordBytes: number) => ({
      ...{ deployment, records: 1, answerBytes: 500, recordBytes, appendBytes: 1700, busiestShare: 0.34 },
    });
    const results = {
      ...{ at: '', command: '', seconds: 1, machine: {}, versions: {}, rounds: 1, calibrationUs: [1] },
      runs: [...paced, ...full, ...others, ...full.map((one) => ({ ...one, work: 'replay' }))],
      sizes: [size('redis', 1000), size('cluster', 1200), size('sqlite', 900)],
    } as unknown as ScalingResults;
    const rowOf = (table: string, start: string) =>
      capacityTables[table]?.(results)
        .split('\n')
        .find((line) => line.startsWith(`| ${start}`))
        ?.split('|')
        .slice(2, -1)
        .map((cell) => cell.trim());
    expect(rowOf('cost', 'records of a day')).toEqual(['86 MB', '78 MB', 'calculated']);
    expect(rowOf('parts', 'one Redis')).toEqual(['10,000 first payouts a second', 'calculated']);
    expect(rowOf('parts', 'a cluster of N')?.[0]).toBe('N × 8,696 first payouts a second');
    expect(rowOf('plans', 'processes')).toEqual(['1; two for availability', '1; two for availability', '37']);
    expect(rowOf('plans', 'CPU of Redis')?.[2]).toBe('5.75 cores: 12 servers');
    expect(rowOf('plans', 'records in Redis')?.[2]).toBe('10 TB in 17 TB of memory: 270 × 64 GB');
    expect(rowOf('plans', 'so Redis is')?.[2]).toBe('a cluster of 270 masters');
  });
});

describe('the benchmark', () => {
  it('starts the gateway as the image and the scripts do', () => {
    const flags = NODE_FLAGS.join(' ');
    const [own, ...others] = NODE_FLAGS.toReversed();
    expect(others).toEqual(NODE_OPTIONS.toReversed());
    expect(read('Dockerfile')).toContain(`\nENV NODE_OPTIONS="${NODE_OPTIONS.join(' ')}"\n`);
    expect(read('Dockerfile')).toContain(`\nENTRYPOINT ["node", "${own}", "dist/main.js"]\n`);
    const { scripts } = JSON.parse(read('package.json'));
    for (const script of [scripts.start, scripts.oncegate])
      expect(script).toMatch(`node ${flags} dist/main.js`);
  });

  it('judges by the median of ratios that each round gave', () => {
    const none = { requests: 1, busy: 1, wrong: 0, rssBytes: 1 };
    const run = (round: number, system: string, perSecond: number, cpuUs: number): CellRun => ({
      ...{ work: 'balance', size: 300, round, system, perSecond, cpuUs },
      ...none,
    });
    const results = {
      ...{ rounds: 3, paced: [], growth: [], memory: [], calibrationUs: [100, 109, 104] },
      startsMs: { yaml: [601], json: [349, 351, 340], hundred: [199, 201, 190] },
      cells: [
        ...[
          run(1, 'oncegate-redis', 300, 10),
          run(1, 'express-hpm', 100, 30),
          run(1, 'express-logged', 1, 12),
        ],
        ...[run(2, 'oncegate-redis', 100, 30), run(2, 'express-hpm', 100, 30)],
        ...[run(3, 'oncegate-redis', 420, 10), run(3, 'express-hpm', 200, 20)],
        ...[1, 2].map((mib) => ({
          ...run(mib, 'express-redis-logged', 1, 1),
          ...{ work: 'first', rssBytes: mib * 1024 * 1024 },
        })),
      ],
    } as unknown as Results;
    const targets = targetsOf(results);
    expect(targets[0]).toMatchObject({ figure: 0.5, spread: [1 / 3, 1], met: true, floor: 0.4 });
    expect(targets[1]).toMatchObject({ figure: undefined, met: undefined });
    expect(targets.find(({ work }) => work === 'memory, redis')).toMatchObject({ met: undefined, floor: 2 });
    expect(targets.at(-1)).toMatchObject({ work: 'start', figure: 199, met: true });
    expect(quietLine(results)).toMatch('9 % longer than at its fastest: the run was quiet.');
    const noisy = { ...results, calibrationUs: [100, 111] };
    expect(targetsOf(noisy).at(-1)).toMatchObject({ figure: 199, met: undefined });
    expect(quietLine(noisy)).toMatch('11 % longer than at its fastest: **the run is noisy**');
  });

  it('does not count a latency as met if requests were refused', () => {
    const run = (system: string, p50Ms: number, refused: number) => ({
      ...{ round: 1, system, p50Ms, p99Ms: p50Ms, answered: 9, refused, wrong: 0, late: 0 },
    });
    const results = {
      ...{ rounds: 1, cells: [], growth: [], memory: [], startsMs: { yaml: [], json: [], hundred: [] } },
      calibrationUs: [1, 1],
    };
    const others = [run('backend', 0.1, 0), run('node-idempotency', 0.3, 0)];
    const verdicts = (ours: object) =>
      targetsOf({ ...results, paced: [...others, ours] } as unknown as Results).flatMap(({ work, met }) =>
        work.startsWith('added') ? [met] : [],
      );
    expect(verdicts(run('oncegate-redis', 0.2, 0))).toEqual([true, true]);
    expect(verdicts(run('oncegate-redis', 0.2, 1))).toEqual([false, false]);
    expect(verdicts(run('oncegate-redis', 0.4, 0))).toEqual([false, false]);
  });
});
