import type { Work } from './load.ts';
import { median, noiseOf, type Results, ratios } from './results.ts';

/** One line of the table of targets. */
export interface Target {
  work: string;
  says: string;
  /** Undefined if this run did not measure it. */
  figure: number | undefined;
  /** The lowest and the highest round. */
  spread: [number, number] | undefined;
  unit: '×' | 'ms' | 'MiB' | 'bytes';
  /** Undefined if it was not measured, or if the run was noisy. */
  met: boolean | undefined;
  /** The same figure for a system that does the work with the same libraries and without the promise, where one was measured. */
  floor?: number | undefined;
}

type Measured = Pick<Target, 'figure' | 'spread'>;

const NOT_MEASURED: Measured = { figure: undefined, spread: undefined };
const FLAT = 1.1;
const MIB = 1024 * 1024;

const [REDIS, SQLITE, POSTGRES] = ['oncegate-redis', 'oncegate-sqlite', 'oncegate-postgres'];

/** Each work whose processor time is compared with that of another system, and how many times as much it may take. */
const CPU: readonly [
  says: string,
  work: Work,
  system: string,
  peer: string,
  bound: number,
  peerSays: string,
][] = [
  ['balance read', 'balance', REDIS, 'express-hpm', 0.52, 'Express + http-proxy-middleware'],
  ['balance read', 'balance', REDIS, 'express-undici', 1.08, 'Express + undici dispatch'],
  ['first-time payout on Redis', 'first', REDIS, 'node-idempotency', 0.9, '@node-idempotency'],
  ['first-time payout on Redis', 'first', REDIS, 'express-idempotency', 0.5, 'express-idempotency'],
  ['first-time payout on Redis', 'first', REDIS, 'express-redis', 1.5, 'two writes and no checks'],
  ['replay on Redis', 'replay', REDIS, 'node-idempotency', 0.85, '@node-idempotency'],
  ['replay on Redis', 'replay', REDIS, 'express-redis', 1.2, 'one command and no checks'],
  ['replay on Redis', 'replay', REDIS, 'express-memory', 2, 'Express answering from memory'],
  ['first-time payout on SQLite', 'first', SQLITE, REDIS, 1.15, 'oncegate on Redis'],
  ['replay on SQLite', 'replay', SQLITE, REDIS, 1, 'oncegate on Redis'],
  ['first-time payout on PostgreSQL', 'first', POSTGRES, REDIS, 1.8, 'oncegate on Redis'],
  ['pass-through', 'passthrough', REDIS, 'express-hpm', 1.15, 'Express + http-proxy-middleware'],
  ['1 MiB upload without a key', 'upload', REDIS, 'express-hpm', 1.15, 'Express + http-proxy-middleware'],
];

/** The system that does the same with the same libraries, without the promise and its checks: what our work costs at least. */
const LEAST: Readonly<Record<string, Partial<Record<Work, string>>>> = {
  [REDIS]: { balance: 'express-logged', first: 'express-redis-logged', replay: 'express-redis-logged' },
  [SQLITE]: { first: 'express-sqlite-logged', replay: 'express-sqlite-logged' },
};

/** The same for requests a second, and how many times as many there must be. */
const RATE: readonly [says: string, system: string, peer: string, bound: number, peerSays: string][] = [
  ['first-time payout on Redis', REDIS, 'node-idempotency', 1.2, '@node-idempotency'],
  [
    'first-time payout on SQLite',
    SQLITE,
    'oncegate-redis-always',
    1,
    'oncegate on Redis, appendfsync always',
  ],
  ['first-time payout on SQLite', SQLITE, REDIS, 0.7, 'oncegate on Redis, appendfsync everysec'],
];

/** Every target of the benchmark, judged by the median of the rounds. */
export function targetsOf(results: Results): Target[] {
  const ratio = (of: 'perSecond' | 'cpuUs', work: Work, system: string, peer: string): Measured =>
    summed(ratios(results, of, work, system, peer));
  const targets: Target[] = [
    ...CPU.map(([says, work, system, peer, bound, peerSays]) => {
      const [least, other] = [LEAST[system]?.[work], LEAST[peer]?.[work] ?? peer];
      const floor = least && least !== peer ? ratio('cpuUs', work, least, other).figure : undefined;
      return {
        ...atMost(says, bound, '×', `CPU, compared with ${peerSays}`, ratio('cpuUs', work, system, peer)),
        floor,
      };
    }),
    ...RATE.map(([says, system, peer, bound, peerSays]) =>
      atLeast(
        says,
        bound,
        `requests a second, compared with ${peerSays}`,
        ratio('perSecond', 'first', system, peer),
      ),
    ),
    ...(['p50Ms', 'p99Ms'] as const).map((of) => addedLatency(results, of)),
    ...(['redis', 'sqlite'] as const).flatMap((store) => [
      {
        ...atMost(
          `memory, ${store}`,
          150,
          'MiB',
          'RSS of a process, while new keys arrive',
          memoryAtMost(results, store),
        ),
        floor: leastMemory(results, `express-${store}-logged`),
      },
      atMost(
        `memory, ${store}`,
        FLAT,
        '×',
        'RSS at the last key, compared with the 100,000th',
        memoryGrowth(results, store),
      ),
      atMost(
        `store, ${store}`,
        store === 'redis' ? 320 : 380,
        'bytes',
        'of a completed record without its stored answer',
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
    ...(
      [
        ['yaml', 600],
        ['json', 350],
      ] as const
    ).map(([format, bound]) =>
      atMost(
        `start, keys as ${format.toUpperCase()}`,
        bound,
        'ms',
        'until ready, with 10,000 secret keys',
        summed(results.startsMs[format]),
      ),
    ),
    atMost('start', 200, 'ms', 'until ready, with 100 secret keys', summed(results.startsMs.hundred)),
  ];
  return noiseOf(results).isNoisy ? targets.map((target) => ({ ...target, met: undefined })) : targets;
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

function summed(values: readonly number[]): Measured {
  if (values.length === 0) return NOT_MEASURED;
  return { figure: median(values), spread: [Math.min(...values), Math.max(...values)] };
}

/**
 * Latency that oncegate on Redis adds to the backend's, at 500 payouts a second, against what @node-idempotency adds in the
 * same round. A run with refused requests does not meet the target, because refusing some requests makes the others faster.
 */
function addedLatency({ rounds, paced }: Results, of: 'p50Ms' | 'p99Ms'): Target {
  const added = (system: string) =>
    Array.from({ length: rounds }, (_, i) => {
      const at = (name: string) => paced.find((run) => run.round === i + 1 && run.system === name);
      const [one, alone] = [at(system), at('backend')];
      return one && alone ? [one[of] - alone[of]] : [];
    }).flat();
  const peer = median(added('node-idempotency'));
  const target = atMost(
    'added latency on Redis',
    Math.round(peer * 100) / 100,
    'ms',
    `${of.replace('Ms', '')} over the backend alone: what @node-idempotency adds`,
    summed(added(REDIS)),
  );
  const refused = paced.some((run) => run.system === REDIS && run.refused);
  const { figure: floor } = summed(added('express-redis-logged'));
  return { ...target, floor, ...(refused && { met: false }) };
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

function memoryAtMost({ memory }: Results, store: 'redis' | 'sqlite'): Measured {
  const samples = memory.filter((run) => run.store === store).flatMap((run) => run.samples);
  const all = samples.map(({ rssBytes }) => rssBytes);
  return all.length === 0 ? NOT_MEASURED : { figure: Math.max(...all) / MIB, spread: undefined };
}

/** The most that the system without the promise took while it was measured with first payouts, in MiB. */
function leastMemory({ cells }: Results, system: string): number | undefined {
  const all = cells.filter((run) => run.work === 'first' && run.system === system);
  return all.length === 0 ? undefined : Math.max(...all.map(({ rssBytes }) => rssBytes)) / MIB;
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
