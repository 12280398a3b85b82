import { useMemo } from 'preact/hooks';
import type { OutcomeGroup, SeriesPoint } from '../src/admin/console/contract.ts';
import { Chart } from './chart.tsx';
import { series } from './live.ts';
import { useShared } from './store.ts';
import { age, count, milliseconds, number, OUTCOMES, perSecond } from './words.ts';

const GROUPS: { group: OutcomeGroup; colour: string; dash?: number[] }[] = [
  { group: 'executed', colour: 's1' },
  { group: 'replayed', colour: 's2', dash: [8, 3] },
  { group: 'conflict', colour: 's3', dash: [2, 2] },
  { group: 'unknown', colour: 's4' },
  { group: 'refused', colour: 's5', dash: [8, 3] },
  { group: 'failed', colour: 's7', dash: [8, 3, 2, 3] },
  { group: 'gone', colour: 's6', dash: [2, 2] },
];

/** What all charts share. */
interface Samples {
  points: readonly SeriesPoint[];
  everyMs: number;
  /** The two options of {@link Chart} that place the samples in time. */
  frame: { timesMs: number[]; gapMs: number };
}

/** The charts of the overview, from the samples that the gateway keeps. */
export function Charts() {
  const { points, everyMs } = useShared(series);
  const timesMs = useMemo(() => points.map(({ atMs }) => atMs), [points]);
  const samples = { points, everyMs, frame: { timesMs, gapMs: 2 * everyMs } };
  return (
    <div class="panels">
      <RateChart {...samples} />
      <LatencyChart {...samples} />
      <DoubtsChart {...samples} />
      <WorkChart {...samples} />
    </div>
  );
}

function RateChart({ points, everyMs, frame }: Samples) {
  return (
    <Chart
      {...frame}
      id="chart-rate"
      title="Requests per second, by outcome"
      lines={GROUPS.map(({ group, ...look }) => ({
        ...look,
        label: OUTCOMES[group],
        values: points.map(({ perSecond: rates }) => rates[group]),
      }))}
      format={perSecond}
      summary={totals(points, everyMs)}
    />
  );
}

function LatencyChart({ points, frame }: Samples) {
  const gateway = points.map((point) => point.gateway);
  const upstream = points.map((point) => point.upstream);
  return (
    <Chart
      {...frame}
      id="chart-latency"
      title="Latency: the gateway’s share, and the backend"
      scale="log"
      lines={[
        { label: 'Backend, 95 %', colour: 's3', values: upstream.map((at) => at?.p95Ms ?? null) },
        {
          label: 'Backend, median',
          colour: 's3',
          dash: [4, 3],
          values: upstream.map((at) => at?.p50Ms ?? null),
        },
        { label: 'Gateway, 95 %', colour: 's1', values: gateway.map((at) => at?.p95Ms ?? null) },
        {
          label: 'Gateway, median',
          colour: 's1',
          dash: [4, 3],
          values: gateway.map((at) => at?.p50Ms ?? null),
        },
      ]}
      format={milliseconds}
      summary={latencies(points)}
    />
  );
}

function DoubtsChart({ points, frame }: Samples) {
  const inDoubt = points.at(-1)?.inDoubt ?? null;
  return (
    <Chart
      {...frame}
      id="chart-doubts"
      title="Keys in doubt"
      lines={[{ label: 'In doubt', colour: 's4', values: points.map((point) => point.inDoubt) }]}
      format={toTenths}
      smallestStep={1}
      summary={
        inDoubt === null ? 'The store has not been counted yet.' : `Now: ${count(inDoubt, 'key')} in doubt.`
      }
    />
  );
}

function WorkChart({ points, frame }: Samples) {
  const newest = points.at(-1);
  return (
    <Chart
      {...frame}
      id="chart-work"
      title="Requests in the gateway now"
      lines={[
        { label: 'In flight', colour: 's1', values: points.map(({ inFlight }) => inFlight) },
        {
          label: 'Executing',
          colour: 's2',
          dash: [8, 3],
          values: points.map(({ executing }) => executing),
        },
        {
          label: 'Waiting duplicates',
          colour: 's5',
          dash: [2, 2],
          values: points.map(({ waiting }) => waiting),
        },
      ]}
      format={toTenths}
      smallestStep={1}
      summary={
        newest
          ? `Now: ${number(newest.inFlight)} in flight, ${number(newest.executing)} executing, ${number(newest.waiting)} waiting for the first request.`
          : 'No samples yet.'
      }
    />
  );
}

const toTenths = (value: number): string => number(Math.round(value * 10) / 10);

/** How many requests of each kind the chart shows. A rate holds for the time since the sample before. */
function totals(points: readonly SeriesPoint[], everyMs: number): string {
  const first = points[0];
  const last = points.at(-1);
  if (!first || !last) return 'No samples yet: the first comes after a few seconds.';
  const sums = GROUPS.map(({ group }) => {
    let sum = 0;
    for (const [at, { atMs, perSecond: rates }] of points.entries()) {
      const sinceMs = Math.min(atMs - (points[at - 1]?.atMs ?? atMs - everyMs), 2 * everyMs);
      sum += (rates[group] * sinceMs) / 1000;
    }
    return { label: OUTCOMES[group].toLowerCase(), sum: Math.round(sum) };
  });
  const some = sums.filter(({ sum }) => sum > 0).map(({ label, sum }) => `${label} ${number(sum)}`);
  const span = age(last.atMs - first.atMs + everyMs);
  return `In the last ${span}: ${some.length > 0 ? some.join(', ') : 'no requests'}.`;
}

function latencies(points: readonly SeriesPoint[]): string {
  const gateway = points.findLast((point) => point.gateway)?.gateway;
  const upstream = points.findLast((point) => point.upstream)?.upstream;
  if (!gateway && !upstream) return 'No requests yet.';
  const words = [
    gateway && `the gateway added ${milliseconds(gateway.p95Ms)} or less to 95 % of requests`,
    upstream && `the backend answered 95 % within ${milliseconds(upstream.p95Ms)}`,
  ];
  return `Last: ${words.filter(Boolean).join('; ')}. The scale is logarithmic.`;
}
