import type { Work } from './load.ts';
import { median, type Results, ratios } from './results.ts';

/** One line of the table of targets. */
export interface Target {
  work: string;
  says: string;
  /** Undefined if this run did not measure it. */
  figure: number | undefined;
  /** The lowest and the highest round. */
  spread: [number, number] | undefined;
  unit: '×' | 'ms' | 'MiB' | 'bytes';
  met: boolean | undefined;
}

type Measured = Pick<Target, 'figure' | 'spread'>;

const NOT_MEASURED: Measured = { figure: undefined, spread: undefined };
const FLAT = 1.1;
const MIB = 1024 * 1024;

/** Every target of the benchmark, judged by the median of the ratios of the rounds. */
export function targetsOf(results: Results): Target[] {
  const ratio = (of: 'perSecond' | 'cpuUs', work: Work, system: string, peer: string): Measured =>
    summed(ratios(results, of, work, system, peer));
  const rate = (work: Work, system: string, peer: string) => ratio('perSecond', work, system, peer);
  const [redis, sqlite] = ['oncegate-redis', 'oncegate-sqlite'];
  return [
    atLeast(
      'balance read',
      2,
      'requests a second, compared with Express + http-proxy-middleware',
      rate('balance', redis, 'express-hpm'),
    ),
    atMost(
      'balance read',
      1.25,
      '×',
      'CPU, compared with Express + undici dispatch',
      ratio('cpuUs', 'balance', redis, 'express-undici'),
    ),
    atLeast(
      'pass-through',
      1,
      'requests a second, compared with Express + http-proxy-middleware',
      rate('passthrough', redis, 'express-hpm'),
    ),
    atLeast(
      'first-time withdraw on Redis',
      1,
      'requests a second, compared with @node-idempotency',
      rate('first', redis, 'node-idempotency'),
    ),
    atLeast(
      'first-time withdraw on Redis',
      2.2,
      'requests a second, compared with express-idempotency',
      rate('first', redis, 'express-idempotency'),
    ),
    atLeast(
      'first-time withdraw on SQLite',
      1,
      'requests a second, compared with oncegate on Redis',
      rate('first', sqlite, redis),
    ),
    atLeast(
      'replay on Redis',
      1.5,
      'requests a second, compared with @node-idempotency',
      rate('replay', redis, 'node-idempotency'),
    ),
    atLeast(
      'replay on Redis',
      0.65,
      'requests a second, compared with Express answering from memory',
      rate('replay', redis, 'express-memory'),
    ),
    atLeast(
      'replay on SQLite',
      1.3,
      'requests a second, compared with oncegate on Redis',
      rate('replay', sqlite, redis),
    ),
    addedLatency(results, 'Redis', 'p50Ms', 0.35),
    addedLatency(results, 'Redis', 'p99Ms', 2),
    addedLatency(results, 'SQLite', 'p50Ms', 0.35),
    addedLatency(results, 'SQLite', 'p99Ms', 2),
    atMost('memory', 200, 'MiB', 'RSS of a process, at most', memoryAtMost(results)),
    ...(['redis', 'sqlite'] as const).flatMap((store) => [
      atMost(
        `memory, ${store}`,
        FLAT,
        '×',
        'RSS at the last key, compared with the 100,000th',
        memoryGrowth(results, store),
      ),
      atMost(
        `store, ${store}`,
        220,
        'bytes',
        'bytes of a completed record without its stored answer',
        overhead(results, store),
      ),
      atMost(
        `growth, ${store}`,
        FLAT,
        '×',
        'CPU a request with 5,000,000 records, compared with 10,000',
        growth(results, store),
      ),
    ]),
    atMost(
      'two workers',
      1.1,
      '×',
      'CPU a request, compared with one worker',
      ratio('cpuUs', 'balance', 'oncegate-two-workers', redis),
    ),
    ...(['yaml', 'json'] as const).map((format) =>
      atMost(
        `start, keys as ${format.toUpperCase()}`,
        600,
        'ms',
        'until ready, with 10,000 secret keys',
        summed(results.startsMs[format]),
      ),
    ),
  ];
}

function atLeast(work: string, bound: number, says: string, measured: Measured): Target {
  const { figure } = measured;
  return {
    work,
    says: `≥ ${bound} × ${says}`,
    unit: '×',
    ...measured,
    met: figure === undefined ? undefined : figure >= bound,
  };
}

function atMost(work: string, bound: number, unit: Target['unit'], says: string, measured: Measured): Target {
  const { figure } = measured;
  return {
    work,
    says: `≤ ${bound} ${unit} ${says}`,
    unit,
    ...measured,
    met: figure === undefined ? undefined : figure <= bound,
  };
}

/** Median and spread of a figure that each round measures. */
function overRounds(
  { rounds }: Pick<Results, 'rounds'>,
  of: (round: number) => number | undefined,
): Measured {
  return summed(Array.from({ length: rounds }, (_, i) => of(i + 1)).filter((value) => value !== undefined));
}

function summed(values: readonly number[]): Measured {
  if (values.length === 0) return NOT_MEASURED;
  return { figure: median(values), spread: [Math.min(...values), Math.max(...values)] };
}

/** Latency added to that of the backend alone, at 1,000 requests a second. A run with refused requests does not meet the
 * target, because refusing some requests makes the others faster. */
function addedLatency(
  { rounds, paced }: Results,
  store: 'Redis' | 'SQLite',
  of: 'p50Ms' | 'p99Ms',
  bound: number,
): Target {
  const system = `oncegate-${store.toLowerCase()}`;
  const added = overRounds({ rounds }, (round) => {
    const at = (name: string) => paced.find((run) => run.round === round && run.system === name);
    const [one, alone] = [at(system), at('backend')];
    return one && alone ? one[of] - alone[of] : undefined;
  });
  const percentile = of.replace('Ms', '');
  const target = atMost(
    `added latency, ${store}`,
    bound,
    'ms',
    `${percentile} over the backend alone`,
    added,
  );
  const refused = paced.some((run) => run.system === system && run.refused);
  return refused ? { ...target, met: false } : target;
}

function growth({ growth: runs }: Results, store: 'redis' | 'sqlite'): Measured {
  const rounds = new Set(runs.map(({ round }) => round));
  const ratios = [...rounds].flatMap((round) => {
    const [few, many] = runs
      .filter((run) => run.round === round && run.store === store)
      .sort((a, b) => a.records - b.records);
    return few && many ? [many.cpuUs / few.cpuUs] : [];
  });
  return summed(ratios);
}

function memoryAtMost({ cells, memory }: Results): Measured {
  const ours = cells.filter(({ system }) => system.startsWith('oncegate')).map(({ rssBytes }) => rssBytes);
  const all = [...ours, ...memory.flatMap(({ samples }) => samples.map(({ rssBytes }) => rssBytes))];
  return all.length === 0 ? NOT_MEASURED : { figure: Math.max(...all) / MIB, spread: undefined };
}

function memoryGrowth({ memory }: Results, store: 'redis' | 'sqlite'): Measured {
  const samples = memory.find((run) => run.store === store)?.samples ?? [];
  const [from, to] = [samples.find(({ keys }) => keys >= 100_000), samples.at(-1)];
  return from && to && from !== to
    ? { figure: to.rssBytes / from.rssBytes, spread: undefined }
    : NOT_MEASURED;
}

function overhead({ memory }: Results, store: 'redis' | 'sqlite'): Measured {
  const run = memory.find((one) => one.store === store);
  return run ? { figure: run.overheadBytes, spread: undefined } : NOT_MEASURED;
}
