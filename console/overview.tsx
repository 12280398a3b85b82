import type { Overview, Part } from '../src/admin/console/contract.ts';
import { overview, overviewProblem, readSeries, series, usePolling } from './live.ts';
import { Charts } from './overview-charts.tsx';
import { Facts, ScrollBox, ViewHeading } from './parts.tsx';
import { linkTo } from './router.ts';
import { useShared } from './store.ts';
import { age, moment, number, STATES } from './words.ts';

export function OverviewView() {
  const now = useShared(overview);
  const problem = useShared(overviewProblem);
  const { everyMs } = useShared(series);
  usePolling(readSeries, everyMs);
  return (
    <>
      <ViewHeading>Overview</ViewHeading>
      {problem && (
        <p class="notice bad" role="alert">
          The state of the gateway cannot be read. {problem}
        </p>
      )}
      {now ? <State now={now} /> : !problem && <p>Loading …</p>}
      <Charts />
      {now && <Parts now={now} />}
      {now && <About now={now} />}
    </>
  );
}

function Word({ state }: { state: Part['state'] }) {
  const { word, sign, tone } = STATES[state];
  return (
    <span class={`word ${tone}`}>
      <span aria-hidden="true">{sign} </span>
      {word}
    </span>
  );
}

function State({ now }: { now: Overview }) {
  const { doubts } = now;
  return (
    <section class={`notice ${STATES[now.state].tone}`} aria-label="State of the gateway">
      <p>
        <Word state={now.state} />: {now.summary}
      </p>
      <dl class="figures">
        <div>
          <dt>
            <a href={linkTo('doubts')}>keys in doubt</a>
          </dt>
          <dd id="keys-in-doubt">{doubts.keys === null ? 'not known' : number(doubts.keys)}</dd>
        </div>
        <div>
          <dt>age of the oldest</dt>
          <dd>{oldest(doubts)}</dd>
        </div>
        <div>
          <dt>of them without an owner</dt>
          <dd>{doubts.ownerGone === null ? 'not known' : number(doubts.ownerGone)}</dd>
        </div>
      </dl>
    </section>
  );
}

function oldest({ keys, oldestMs }: Overview['doubts']): string {
  if (keys === 0) return 'none';
  return oldestMs === null ? 'not known' : age(oldestMs);
}

function Parts({ now }: { now: Overview }) {
  return (
    <section class="panel" aria-labelledby="parts">
      <h2 id="parts">Parts</h2>
      <ScrollBox label="State of each part">
        <table>
          <caption>The state of each part, and what it means for merchants</caption>
          <thead>
            <tr>
              <th scope="col">Part</th>
              <th scope="col">State</th>
              <th scope="col">What was found</th>
              <th scope="col">For merchants</th>
            </tr>
          </thead>
          <tbody>
            {now.parts.map(({ name, title, state, detail, meaning, warnings }) => (
              <tr key={name}>
                <th scope="row">{title}</th>
                <td>
                  <Word state={state} />
                </td>
                <td>
                  {detail}
                  {warnings.length > 0 && (
                    <ul>
                      {warnings.map((warning) => (
                        <li key={warning}>{warning}</li>
                      ))}
                    </ul>
                  )}
                </td>
                <td>{meaning}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </ScrollBox>
    </section>
  );
}

function About({ now: { build, startedAt, uptimeMs, workers, mode, store, doubts } }: { now: Overview }) {
  return (
    <section class="panel" aria-labelledby="about">
      <h2 id="about">This gateway</h2>
      <Facts
        rows={[
          ['Version', `${build.version}, commit ${build.commit.slice(0, 12)}, Node ${build.node}`],
          ['Running', `${age(uptimeMs)}, since ${moment(startedAt)}`],
          ['Processes', number(workers)],
          ['Mode', mode],
          ['Store', store],
          ['Keys in doubt counted', doubts.countedAt === null ? 'not yet' : moment(doubts.countedAt)],
        ]}
      />
    </section>
  );
}
