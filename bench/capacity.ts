/** The tables of docs/scaling.md: what was measured, and what is calculated from it. */
import { machineLine, table, thousands } from './report.ts';
import { median } from './results.ts';
import type { DeploymentName, Footprint, ScalingResults } from './scaling-results.ts';

const A_DAY_S = 86_400;
const A_CORE_US = 1_000_000;
/** How much of its core a process may use in a plan: the rest is for peaks, and for the time when another one restarts. */
const SHARE = { gateway: 0.6, redis: 0.5 };
/** Memory of a Redis node, and how much of it records may fill: a rewrite of the append-only file takes the rest. */
const NODE_BYTES = 64e9;
const NODE_SHARE = 0.6;
/** How long the backend of the plans takes. */
const BACKEND_S = 0.3;
/** From this load average on, a run does not count. */
const BUSY = 1;
const RATES = [10, 1000, 100_000] as const;

const MEASURED = 'measured';
const CALCULATED = 'calculated';

type Which = { deployment: DeploymentName; work?: 'first' | 'replay'; ratePerS?: number };

/** The median of the rounds. */
function of(
  { runs }: Pick<ScalingResults, 'runs'>,
  name: keyof Footprint,
  { deployment, work = 'first', ratePerS }: Which,
): number {
  const found = runs.filter(
    (run) => run.deployment === deployment && run.work === work && run.ratePerS === ratePerS,
  );
  return median(found.map((run) => run[name] ?? Number.NaN));
}

/** A figure of one deployment divided by that of another in the same round: the median. */
function ratio({ runs, rounds }: ScalingResults, name: keyof Footprint, one: Which, other: Which): number {
  const each = Array.from({ length: rounds }, (_, i) => {
    const round = { runs: runs.filter((run) => run.round === i + 1) };
    return of(round, name, one) / of(round, name, other);
  });
  return median(each);
}

function sizeOf({ sizes }: ScalingResults, deployment: DeploymentName) {
  const size = sizes.find((one) => one.deployment === deployment);
  if (!size) throw new Error(`the size of ${deployment} was not measured`);
  return size;
}

const us = (value: number): string => `${Math.round(value)} µs`;
const bytes = (value: number): string => `${thousands(value)} bytes`;
const times = (value: number): string => `${value.toFixed(2)} ×`;

/** Bytes with three digits and a decimal unit. */
function amount(value: number): string {
  const units = ['bytes', 'KB', 'MB', 'GB', 'TB', 'PB'];
  const at = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(value) / 3)));
  return `${Number((value / 1000 ** at).toPrecision(2))} ${units[at]}`;
}

const cores = (value: number): string => (value < 0.01 ? 'below 0.01 cores' : `${value.toFixed(2)} cores`);

const REDIS: Which = { deployment: 'redis' };
const SQLITE: Which = { deployment: 'sqlite' };
const at = (which: Which, ratePerS: number): Which => ({ ...which, ratePerS });
const replayOn = ({ deployment }: Which): Which => ({ deployment, work: 'replay' });

/** What one payout, and one replay, takes. */
function costTable(results: ScalingResults): string {
  const both = (name: keyof Footprint, says: (value: number) => string, which = (one: Which) => one) =>
    [REDIS, SQLITE].map((one) => says(of(results, name, which(one))));
  const sizes = [sizeOf(results, 'redis'), sizeOf(results, 'sqlite')] as const;
  const [onRedis, onSqlite] = sizes;
  const rows = [
    ['CPU of the gateway, first payout, at full speed', ...both('cpuUs', us), MEASURED],
    ['the same at 1,000 a second', ...both('cpuUs', us, (one) => at(one, 1000)), MEASURED],
    ['the same at 250 a second', ...both('cpuUs', us, (one) => at(one, 250)), MEASURED],
    ['CPU of the gateway, replay, at full speed', ...both('cpuUs', us, replayOn), MEASURED],
    ['CPU of Redis, first payout, at full speed', us(of(results, 'storeCpuUs', REDIS)), '-', MEASURED],
    ['the same at 1,000 a second', us(of(results, 'storeCpuUs', at(REDIS, 1000))), '-', MEASURED],
    ['CPU of Redis, replay, at full speed', us(of(results, 'storeCpuUs', replayOn(REDIS))), '-', MEASURED],
    ...(['p50Ms', 'p99Ms'] as const).map((name) => [
      `from sending to the answer at 250 a second, ${name === 'p50Ms' ? 'median' : '99th percentile'}`,
      ...both(
        name,
        (value) => `${value.toFixed(1)} ms`,
        (one) => at(one, 250),
      ),
      MEASURED,
    ]),
    ['network to and from Redis, first payout', bytes(of(results, 'networkBytes', REDIS)), '-', MEASURED],
    ['header fields and body of the answer', ...sizes.map((size) => bytes(size.answerBytes)), MEASURED],
    ['a record with that answer', ...sizes.map((size) => bytes(size.recordBytes)), MEASURED],
    ['a record without it', ...sizes.map((size) => bytes(size.recordBytes - size.answerBytes)), CALCULATED],
    ['append-only file, until it is rewritten', bytes(onRedis.appendBytes ?? Number.NaN), '-', MEASURED],
    ['written to the disk, at full speed', ...both('diskBytes', bytes), MEASURED],
    ['written to the disk, at 250 a second', ...both('diskBytes', bytes, (one) => at(one, 250)), MEASURED],
    ['log', ...both('logBytes', bytes), MEASURED],
    [
      'records of a day at one payout a second',
      ...[onRedis, onSqlite].map((size) => amount(size.recordBytes * A_DAY_S)),
      CALCULATED,
    ],
    [
      'log of a day at one payout a second',
      ...both('logBytes', (value) => amount(value * A_DAY_S)),
      CALCULATED,
    ],
  ];
  return table(['', 'on Redis', 'on SQLite', ''], rows, 1);
}

/** First payouts a second that one process may have in a plan, by its processor time at 1,000 a second. */
const planned = (results: ScalingResults, which: Which): number =>
  (SHARE.gateway * A_CORE_US) / of(results, 'cpuUs', at(which, 1000));

/** The same for one Redis. In a cluster a command costs its master somewhat more or less. */
const plannedOfRedis = (results: ScalingResults): number =>
  (SHARE.redis * A_CORE_US) / of(results, 'storeCpuUs', at(REDIS, 1000));

const inCluster = (results: ScalingResults): number =>
  ratio(results, 'storeCpuUs', { deployment: 'cluster' }, REDIS);

/** What one part carries. */
function partTable(results: ScalingResults): string {
  const cluster: Which = { deployment: 'cluster' };
  const rate = (value: number) => `${thousands(value)} first payouts a second`;
  const perMaster = plannedOfRedis(results) / inCluster(results);
  const busiest = Math.round((sizeOf(results, 'cluster').busiestShare ?? Number.NaN) * 100);
  const rows = [
    ['one process on Redis, at full speed', rate(of(results, 'perSecond', REDIS)), MEASURED],
    [`the same, at ${SHARE.gateway * 100} % of its core`, rate(planned(results, REDIS)), CALCULATED],
    ['one process on SQLite, at full speed', rate(of(results, 'perSecond', SQLITE)), MEASURED],
    [`the same, at ${SHARE.gateway * 100} % of its core`, rate(planned(results, SQLITE)), CALCULATED],
    [`one Redis, at ${SHARE.redis * 100} % of its core`, rate(plannedOfRedis(results)), CALCULATED],
    [
      'a cluster of three masters',
      `${times(inCluster(results))} the CPU of one Redis, ${times(ratio(results, 'cpuUs', cluster, REDIS))} that of the gateway; the busiest master has ${busiest} % of the records`,
      MEASURED,
    ],
    ['a cluster of N masters', `N × ${rate(perMaster)}`, CALCULATED],
  ];
  return table(['part', 'carries', ''], rows, 3);
}

/** What a number of payouts a second needs. All of it is calculated. */
function planTable(results: ScalingResults): string {
  const keptFor = (rate: number, deployment: DeploymentName) =>
    sizeOf(results, deployment).recordBytes * A_DAY_S * rate;
  const nodesFor = (kept: number) => Math.ceil(kept / (NODE_BYTES * NODE_SHARE));
  const column = (rate: number): string[] => {
    // What does not fit into one Redis needs a cluster, where each payout takes more of the gateway, of Redis and of its memory.
    const isCluster = rate > plannedOfRedis(results) || nodesFor(keptFor(rate, 'redis')) > 1;
    const on: Which = isCluster ? { deployment: 'cluster' } : REDIS;
    const gateways = Math.ceil((rate / planned(results, REDIS)) * ratio(results, 'cpuUs', on, REDIS));
    const perServer = plannedOfRedis(results) / (isCluster ? inCluster(results) : 1);
    const forCpu = Math.ceil(rate / perServer);
    const kept = keptFor(rate, on.deployment);
    const forMemory = nodesFor(kept);
    const slots = Math.ceil(rate * BACKEND_S);
    return [
      `${gateways}${gateways === 1 ? '; two for availability' : ''}`,
      `${thousands(slots)}, so ${Math.ceil(slots / Math.max(2, gateways))} in each of ${Math.max(2, gateways)} processes`,
      `${cores((rate * SHARE.redis) / perServer)}: ${forCpu} ${forCpu === 1 ? 'server' : 'servers'}`,
      `${amount(kept)} in ${amount(kept / NODE_SHARE)} of memory: ${forMemory} × 64 GB`,
      isCluster ? `a cluster of ${Math.max(3, forCpu, forMemory)} masters` : 'one server',
      `${amount(rate * (sizeOf(results, on.deployment).appendBytes ?? Number.NaN))} a second`,
      `${amount(rate * of(results, 'networkBytes', on))} a second`,
      rate > planned(results, SQLITE) ? 'no' : `${amount(keptFor(rate, 'sqlite'))} on the disk`,
      `${amount(rate * A_DAY_S * of(results, 'logBytes', REDIS))}`,
    ];
  };
  const columns = RATES.map(column);
  const names = [
    'processes of the gateway',
    'slots for a backend that takes 300 ms',
    'CPU of Redis',
    'records in Redis',
    'so Redis is',
    'append-only file grows',
    'network to and from Redis',
    'SQLite instead of Redis, with one process',
    'log a day',
  ];
  const rows = names.map((name, i) => [name, ...columns.map((cells) => cells[i] ?? '')]);
  return table(['first payouts a second', ...RATES.map(thousands)], rows, RATES.length + 1);
}

/** When and where it was measured, and whether the figures count. */
function circumstances(results: ScalingResults): string {
  const { loadAverage, runs } = results;
  const sum = (name: 'late' | 'requests') =>
    runs.filter(({ ratePerS }) => ratePerS).reduce((total, run) => total + (run[name] ?? 0), 0);
  const late = Math.round((100 * sum('late')) / (sum('late') + sum('requests')));
  const wrong = [
    ...(loadAverage < BUSY
      ? []
      : [`other programs ran on the machine (load average ${loadAverage.toFixed(0)})`]),
    ...(late < 1 ? [] : [`${late} % of the requests at a rate could not be sent in time`]),
  ];
  const verdict = wrong.length === 0 ? '' : `**Measure again: ${wrong.join(', and ')}.**\n`;
  return machineLine(results) + verdict;
}

export const capacityTables: Record<string, (results: ScalingResults) => string> = {
  circumstances,
  cost: costTable,
  parts: partTable,
  plans: planTable,
};
