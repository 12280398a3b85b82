import { Chart, type ChartOptions } from '../chart.tsx';
import type { Overview, Sample } from '../contract.ts';
import { overview, overviewProblem } from '../live.ts';
import { Facts, ViewHeading } from '../parts.tsx';
import { linkTo } from '../router.ts';
import { useShared } from '../store.ts';
import { age, doubtsInWords, STATES } from '../words.ts';

export function OverviewView() {
  const now = useShared(overview);
  const problem = useShared(overviewProblem);
  return (
    <>
      <ViewHeading>Overview</ViewHeading>
      {problem && (
        <p class="notice bad" role="alert">
          The state of the gateway cannot be read. {problem}
        </p>
      )}
      {now ? <State now={now} /> : !problem && <p>Loading …</p>}
      <div class="panels">
        {CHARTS.map((chart) => (
          <Chart key={chart.title} {...chart} />
        ))}
      </div>
      {now && <Checks checks={now.checks} />}
    </>
  );
}

function State({ now: { state, doubts, build, upMs } }: { now: Overview }) {
  return (
    <section class={`notice ${STATES[state].tone}`} aria-label="State of the gateway">
      <p>
        <Word state={state} />. <a href={linkTo('doubts')}>Keys in doubt</a>: {doubtsInWords(doubts)}
      </p>
      <p class="muted">
        Version {build.version}, commit {build.commit.slice(0, 12)}, running for {age(upMs)}.
      </p>
    </section>
  );
}

function Word({ state }: { state: Overview['state'] }) {
  const { word, sign, tone } = STATES[state];
  return (
    <span class={`word ${tone}`}>
      <span aria-hidden="true">{sign} </span>
      {word}
    </span>
  );
}

const perSecond = (group: keyof Sample['requests']) => (at: Sample, before: Sample) =>
  ((at.requests[group] - before.requests[group]) * 1000) / (at.upMs - before.upMs);

/** The mean between two samples, or null if there was nothing between them. */
const meanMs = (of: 'gateway' | 'backend') => (at: Sample, before: Sample) => {
  const number = at[of].number - before[of].number;
  return number === 0 ? null : Math.max(0.01, (at[of].ms - before[of].ms) / number);
};

const CHARTS: readonly ChartOptions[] = [
  {
    title: 'Requests per second',
    lines: [
      { label: 'Executed', stroke: 'solid', value: perSecond('executed') },
      { label: 'Replayed', stroke: 'dashed', value: perSecond('replayed') },
      { label: 'Refused', stroke: 'dotted', value: perSecond('refused') },
      { label: 'Outcome unknown', stroke: 'solid', value: perSecond('unknown') },
      { label: 'Failed, not sent', stroke: 'dashed', value: perSecond('failed') },
    ],
  },
  {
    title: 'Milliseconds, on average',
    lines: [
      { label: 'Backend', stroke: 'solid', value: meanMs('backend') },
      { label: 'Gateway’s share', stroke: 'dashed', value: meanMs('gateway') },
    ],
    isLogarithmic: true,
  },
  {
    title: 'Requests and keys in doubt now',
    lines: [
      { label: 'In flight', stroke: 'solid', value: ({ inFlight }) => inFlight },
      { label: 'Waiting duplicates', stroke: 'dashed', value: ({ waiting }) => waiting },
      { label: 'Keys in doubt', stroke: 'dotted', value: ({ inDoubt }) => inDoubt },
    ],
  },
];

function Checks({ checks }: { checks: Overview['checks'] }) {
  const rows = checks.map(({ name, ok, detail, warnings = [] }) => {
    const state = warnings.length > 0 ? 'warning' : 'ok';
    const found = `: ${[detail, ...warnings].join('; ')}`;
    return [name, [<Word key="state" state={ok ? state : 'failing'} />, found]] as const;
  });
  return (
    <section class="panel" aria-labelledby="checks">
      <h2 id="checks">Checks, as on /readyz</h2>
      <Facts rows={rows} />
    </section>
  );
}
