import { type Cell, nameOf } from './cells.ts';
import {
  type CellRun,
  type Circumstances,
  type MemoryRun,
  median,
  noiseOf,
  type Results,
} from './results.ts';
import { type Target, targetsOf } from './targets.ts';

const MIB = 1024 * 1024;

/** The tables of the README and of docs/performance.md, in their order; of a run of some workloads, what they have measured. */
export function describeRun(results: Results, isPartial: boolean): string {
  const partial = [machineLine, targetTable, cellTable];
  const tables = isPartial ? partial : [shortTable, latencyTable, ...partial, storeTable];
  return tables.map((tableOf) => tableOf(results)).join('\n');
}

/** Requests a second, processor time and memory of each system at each work, as a Markdown table. */
function cellTable(results: Results): string {
  const rows = [...grouped(results.cells).values()].map((runs) => {
    const [first] = runs as [CellRun];
    const of = (name: 'perSecond' | 'cpuUs' | 'busy' | 'rssBytes') => median(runs.map((run) => run[name]));
    const spread = [Math.min, Math.max].map((edge) => edge(...runs.map(({ cpuUs }) => cpuUs)));
    return [
      ...[first.work, `${first.size}`, first.system],
      ...[thousands(of('perSecond')), of('cpuUs').toFixed(1), spread.join(' to '), ofStore(runs)],
      ...[of('busy').toFixed(2), `${Math.round(of('rssBytes') / MIB)}`, `${wrongIn(runs)}`],
    ];
  });
  const head = [
    'work',
    'bytes',
    'system',
    'requests/s',
    'CPU µs',
    'lowest to highest',
    'of the store',
    'busy',
    'RSS MiB',
    'wrong',
  ];
  return table(head, rows, 3);
}

/** Processor time of the store's server for each request. */
function ofStore(runs: readonly CellRun[]): string {
  const known = runs.flatMap(({ storeCpuUs }) => storeCpuUs ?? []);
  return known.length === 0 ? '' : median(known).toFixed(1);
}

/** At 500 first-time withdraws a second. */
function latencyTable(results: Results): string {
  const systems = [...new Set(results.paced.map(({ system }) => system))];
  const rows = systems.map((system) => {
    const runs = results.paced.filter((run) => run.system === system);
    return [
      system,
      median(runs.map(({ p50Ms }) => p50Ms)).toFixed(2),
      median(runs.map(({ p99Ms }) => p99Ms)).toFixed(2),
      `${median(runs.map(({ late }) => late))}`,
      `${runs.reduce((sum, { refused = 0 }) => sum + refused, 0)}`,
      `${wrongIn(runs)}`,
    ];
  });
  return table(['system', 'p50 ms', 'p99 ms', 'late', 'refused', 'wrong'], rows, 1);
}

/** The sum of all runs, because a single wrong answer matters. */
const wrongIn = (runs: readonly { wrong: number }[]): number =>
  runs.reduce((sum, { wrong }) => sum + wrong, 0);

function targetTable(results: Results): string {
  const rows = targetsOf(results)
    .filter(({ figure }) => figure !== undefined)
    .map((target) => [
      ...[target.work, target.says, figureOf(target), spreadOf(target), floorOf(target), verdictOf(target)],
    ]);
  return table(['work', 'target', 'measured', 'lowest to highest', 'floor', ''], rows, 2);
}

/** The size of each store and the memory of its gateway, while new keys arrive. */
function storeTable({ memory, growth }: Results): string {
  if (memory.length === 0) return 'Not measured in this run.\n';
  const rows = memory.map(({ store, samples, answerBytes, overheadBytes }) => {
    const cost = (records: number) =>
      median(
        growth.filter((run) => run.store === store && run.records === records).map(({ cpuUs }) => cpuUs),
      );
    const [few = Number.NaN, many = Number.NaN] = [...new Set(growth.map(({ records }) => records))].sort(
      (a, b) => a - b,
    );
    const at = samples.find(({ keys }) => keys >= 100_000);
    return [
      store,
      thousands(samples.at(-1)?.keys ?? 0),
      ...[at, samples.at(-1)].map((sample) => (sample ? memoryOf(sample) : 'not reached')),
      ...[`${answerBytes}`, `${answerBytes + overheadBytes}`, cost(few).toFixed(0), cost(many).toFixed(0)],
    ];
  });
  const head = ['store', 'keys', 'RSS / without file pages, MiB, at 100,000', 'at the last key'];
  return table(
    [...head, 'answer bytes', 'store bytes a key', 'CPU µs at 10,000 records', 'at 5,000,000'],
    rows,
    1,
  );
}

const memoryOf = ({ rssBytes, ownBytes }: MemoryRun['samples'][number]): string =>
  [rssBytes, ownBytes].map((bytes) => (bytes === undefined ? '?' : Math.round(bytes / MIB))).join(' / ');

/** The most important figures, for readers who want no details: oncegate and the systems to compare it with. */
function shortTable(results: Results): string {
  const runs = grouped(results.cells);
  const cost = (work: string, system: string) => {
    const found = runs.get(`${work} 300 ${system}`) ?? [];
    const of = (name: 'perSecond' | 'cpuUs') => median(found.map((run) => run[name]));
    return [thousands(of('perSecond')), `${Math.round(of('cpuUs'))}`];
  };
  const rows = [
    ['balance read', 'oncegate', ...cost('balance', 'oncegate-redis')],
    ['', 'Express + http-proxy-middleware', ...cost('balance', 'express-hpm')],
    ['first-time withdraw', 'oncegate on Redis', ...cost('first', 'oncegate-redis')],
    ['', 'oncegate on SQLite', ...cost('first', 'oncegate-sqlite')],
    ['', '@node-idempotency on Redis', ...cost('first', 'node-idempotency')],
    ['replay', 'oncegate on Redis', ...cost('replay', 'oncegate-redis')],
    ['', 'oncegate on SQLite', ...cost('replay', 'oncegate-sqlite')],
    ['', '@node-idempotency on Redis', ...cost('replay', 'node-idempotency')],
  ];
  return table(['work', 'system', 'requests/s', 'CPU µs a request'], rows, 2);
}

export function machineLine(results: Circumstances): string {
  const { at, command, seconds, machine, versions, rounds, seed } = results;
  const { node = '', nginx = '', redis = '', postgres = '', wrk = '' } = versions;
  return [
    `\`${command}\` on ${at.slice(0, 10)}, ${rounds} rounds in ${seconds} s, seed ${seed}: ${machine.cpu},`,
    `${machine.cores} cores, ${machine.memoryGiB} GiB, Linux ${machine.kernel}; Node ${node}, nginx ${nginx}, Redis ${redis},${postgres && ` PostgreSQL ${postgres},`} wrk ${wrk}.`,
    quietLine(results),
    '',
  ].join('\n');
}

/** How quiet the run was. */
export function quietLine(results: Pick<Results, 'calibrationUs'>): string {
  const { spread, isNoisy } = noiseOf(results);
  const took = `A fixed task between the rounds took up to ${Math.round(spread * 100)} % longer than at its fastest`;
  return isNoisy
    ? `${took}: **the run is noisy**, and its targets are not judged.`
    : `${took}: the run was quiet.`;
}

function grouped(runs: readonly CellRun[]): Map<string, CellRun[]> {
  const groups = new Map<string, CellRun[]>();
  for (const run of runs) {
    const name = nameOf(run as Cell);
    groups.set(name, [...(groups.get(name) ?? []), run]);
  }
  return groups;
}

export const thousands = (value: number): string => Math.round(value).toLocaleString('en-US');

function amountOf(value: number, unit: Target['unit']): string {
  if (unit === 'bytes' || unit === 'MiB' || value >= 100) return `${Math.round(value)}`;
  return value.toFixed(2);
}

const figureOf = ({ figure = Number.NaN, unit }: Target): string => `${amountOf(figure, unit)} ${unit}`;

function spreadOf({ spread, unit }: Target): string {
  return spread === undefined ? '' : spread.map((value) => amountOf(value, unit)).join(' to ');
}

const floorOf = ({ floor, unit }: Target): string =>
  floor === undefined || Number.isNaN(floor) ? '' : `${amountOf(floor, unit)} ${unit}`;

const verdictOf = ({ met }: Target): string => (met === undefined ? '' : met ? 'met' : '**not met**');

/** @param texts how many columns, from the left, are text; the others are numbers and right-aligned */
export function table(head: readonly string[], rows: readonly (readonly string[])[], texts: number): string {
  const widths = head.map((cell, i) => Math.max(cell.length, 3, ...rows.map((row) => row[i]?.length ?? 0)));
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell, i) => (i < texts ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0))).join(' | ')} |`;
  const rule = widths.map((width, i) => (i < texts ? '-'.repeat(width) : `${'-'.repeat(width - 1)}:`));
  return [line(head), line(rule), ...rows.map(line), ''].join('\n');
}
