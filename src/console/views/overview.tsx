import { Chart, type ChartOptions } from '../chart.tsx';
import type { Lately, Overview } from '../contract.ts';
import { overview, overviewProblem } from '../live.ts';
import { Facts, ViewHeading } from '../parts.tsx';
import { linkTo } from '../router.ts';
import { useShared } from '../store.ts';
import { age, doubtsInWords, GROUPS, number, STATES, servedInWords } from '../words.ts';

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
      {now && <LastMinute lately={now.lately} />}
      <div class="panels">
        {CHARTS.map((chart) => (
          <Chart key={chart.title} {...chart} />
        ))}
      </div>
      {now && <Checks checks={now.checks} />}
    </>
  );
}

function State({ now }: { now: Overview }) {
  const { state, checks, doubts, build, upMs } = now;
  const failing = checks.filter(({ ok }) => !ok).map(({ name }) => name);
  return (
    <section class={`notice ${STATES[state].tone}`} aria-label="State of the gateway">
      <p class="headline">{servedInWords(now)}</p>
      <p>
        <Word state={state} words="word" />.{' '}
        {failing.length > 0 ? `These checks fail: ${failing.join(', ')}.` : 'All checks pass.'}
      </p>
      <p>
        <a href={linkTo('doubts')}>Keys in doubt</a>: {doubtsInWords(doubts)}
      </p>
      <p class="muted">
        Version {build.version}, commit {build.commit.slice(0, 12)}, running for {age(upMs)}.
      </p>
    </section>
  );
}

function Word({ state, words }: { state: Overview['state']; words: 'word' | 'check' }) {
  const { sign, tone } = STATES[state];
  return (
    <span class={`word ${tone}`}>
      <span aria-hidden="true">{sign} </span>
      {STATES[state][words]}
    </span>
  );
}

/** What became of the requests of the last minute, and what the words mean, here and in the charts. */
function LastMinute({ lately }: { lately: Lately | null }) {
  const groups = Object.keys(GROUPS) as (keyof typeof GROUPS)[];
  const numberOf = (group: keyof typeof GROUPS) =>
    lately && number(group === 'backendErrors' ? lately[group] : lately.requests[group]);
  return (
    <section class="panel" aria-labelledby="last-minute">
      <h2 id="last-minute">Requests of the last minute</h2>
      <dl class="tiles">
        {groups.map((group) => (
          <div key={group}>
            <dt>{GROUPS[group].name}</dt>
            <dd>{numberOf(group) ?? 'not known'}</dd>
          </div>
        ))}
      </dl>
      <details>
        <summary>What these words mean</summary>
        <Facts rows={groups.map((group) => [GROUPS[group].name, GROUPS[group].meaning] as const)} />
      </details>
    </section>
  );
}

type Line = ChartOptions['lines'][number];

const perSecond = (group: keyof typeof GROUPS, stroke: Line['stroke']): Line => ({
  ...{ label: GROUPS[group].name, stroke },
  value: (at, before) => {
    const [now, then] = [at, before].map((sample) =>
      group === 'backendErrors' ? sample[group] : sample.requests[group],
    );
    return (((now ?? 0) - (then ?? 0)) * 1000) / (at.upMs - before.upMs);
  },
});

const CHARTS: readonly ChartOptions[] = [
  {
    title: 'Answered by the backend, per second',
    lines: [perSecond('executed', 'solid'), perSecond('replayed', 'dashed'), perSecond('passedOn', 'dotted')],
  },
  {
    title: 'Without a result, per second',
    lines: [
      perSecond('refused', 'dotted'),
      perSecond('notServed', 'dashed'),
      perSecond('unknown', 'solid'),
      perSecond('backendErrors', 'dashed'),
    ],
  },
  {
    title: 'Time to the answer, in milliseconds',
    lines: [
      { label: 'Half of the requests', stroke: 'solid', value: ({ answerMs }) => answerMs?.half ?? null },
      { label: '99 % of the requests', stroke: 'dashed', value: ({ answerMs }) => answerMs?.most ?? null },
      { label: 'Backend, 99 %', stroke: 'dotted', value: ({ backendMs }) => backendMs?.most ?? null },
      { label: 'Gateway alone, 99 %', stroke: 'solid', value: ({ gatewayMs }) => gatewayMs?.most ?? null },
    ],
    isLogarithmic: true,
  },
  {
    title: 'In flight, and in doubt',
    lines: [
      { label: 'In flight', stroke: 'solid', value: ({ inFlight }) => inFlight },
      { label: 'Duplicates that wait', stroke: 'dashed', value: ({ waiting }) => waiting },
      { label: 'Keys in doubt', stroke: 'dotted', value: ({ inDoubt }) => inDoubt },
    ],
  },
];

function Checks({ checks }: { checks: Overview['checks'] }) {
  const rows = checks.map(({ name, ok, detail, warnings = [] }) => {
    const state = warnings.length > 0 ? 'warning' : 'ok';
    const found = `: ${[detail, ...warnings].join('; ')}`;
    return [name, [<Word key="state" state={ok ? state : 'failing'} words="check" />, found]] as const;
  });
  return (
    <section class="panel" aria-labelledby="checks">
      <h2 id="checks">Checks, as on /readyz</h2>
      <Facts rows={rows} />
    </section>
  );
}
