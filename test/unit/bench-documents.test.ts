import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { DOCUMENTS, documentText, tables } from '../../bench/documents.ts';
import { optionsOf } from '../../bench/options.ts';
import { quietLine } from '../../bench/report.ts';
import type { CellRun, Results } from '../../bench/results.ts';
import { targetsOf } from '../../bench/targets.ts';
import { NODE_FLAGS } from '../../scripts/node-flags.ts';

const read = (path: string) => readFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), 'utf8');

describe('the figures in documents', () => {
  it.each(DOCUMENTS)('are those of the last full run: %s', (path) => {
    expect(read(path), 'run: node bench/documents.ts').toBe(documentText(path));
  });

  it('are all in docs/performance.md', () => {
    const marks = [...read('docs/performance.md').matchAll(/<!-- bench:(\w+) -->/g)].map(([, name]) => name);
    expect(marks.sort()).toEqual(Object.keys(tables).sort());
  });

  it('come from a run in which nothing was answered wrongly by us', () => {
    const results: Results = JSON.parse(read('bench/results.json'));
    const ours = [...results.cells, ...results.paced].filter(({ system }) => system.startsWith('oncegate'));
    expect(ours.length).toBeGreaterThan(0);
    expect(ours.filter(({ wrong }) => wrong > 0)).toEqual([]);
  });
});

describe('the benchmark', () => {
  it('starts the gateway as the image and the scripts do', () => {
    const flags = NODE_FLAGS.join(' ');
    expect(read('Dockerfile')).toContain(`\nENV NODE_OPTIONS=${flags}\n`);
    const { scripts } = JSON.parse(read('package.json'));
    for (const script of [scripts.start, scripts.oncegate])
      expect(script).toMatch(`node ${flags} src/main.ts`);
  });

  it('takes its options, and refuses others', () => {
    expect(optionsOf([])).toEqual({ quick: false, million: false, rounds: 5, json: undefined });
    expect(optionsOf(['--quick'])).toMatchObject({ quick: true, rounds: 1 });
    expect(optionsOf(['--help'])).toBe('help');
    expect(() => optionsOf(['--rounds', 'many'])).toThrow(
      '--rounds takes a number from 1 to 100, not "many"',
    );
    expect(() => optionsOf(['--fast'])).toThrow();
  });

  it('judges by the median of ratios that each round gave', () => {
    const none = { requests: 1, busy: 1, wrong: 0, rssBytes: 1 };
    const run = (round: number, system: string, perSecond: number, cpuUs: number): CellRun => ({
      ...{ work: 'balance', size: 300, round, system, perSecond, cpuUs },
      ...none,
    });
    const results = {
      ...{ rounds: 3, paced: [], growth: [], memory: [], calibrationUs: [100, 109, 104] },
      startsMs: { yaml: [601], json: [599, 601, 590], hundred: [349, 351, 340] },
      cells: [
        ...[run(1, 'oncegate-redis', 300, 10), run(1, 'express-hpm', 100, 30)],
        ...[run(2, 'oncegate-redis', 100, 30), run(2, 'express-hpm', 100, 30)],
        ...[run(3, 'oncegate-redis', 420, 10), run(3, 'express-hpm', 200, 20)],
      ],
    } as unknown as Results;
    const targets = targetsOf(results);
    expect(targets[0]).toMatchObject({ figure: 0.5, spread: [1 / 3, 1], met: true });
    expect(targets[1]).toMatchObject({ figure: undefined, met: undefined });
    expect(targets.at(-1)).toMatchObject({ work: 'start', figure: 349, met: true });
    expect(quietLine(results)).toMatch('9 % longer than at its fastest: the run was quiet.');
    const noisy = { ...results, calibrationUs: [100, 111] };
    expect(targetsOf(noisy).at(-1)).toMatchObject({ figure: 349, met: undefined });
    expect(quietLine(noisy)).toMatch('11 % longer than at its fastest: **the run is noisy**');
  });

  it('calls no latency met that was bought with refusals', () => {
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
