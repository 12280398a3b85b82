import { useEffect, useState } from 'preact/hooks';
import { logOut, lostAtMs, readSession, sessionState } from './api.ts';
import { overview, readOverview, usePolling } from './live.ts';
import { linkTo, type Route, useRoute, VIEWS, type ViewName } from './router.ts';
import { announce, announcements, useShared } from './store.ts';
import { DoubtsView } from './views/doubts.tsx';
import { LogIn } from './views/log-in.tsx';
import { LookUpView } from './views/look-up.tsx';
import { OverviewView } from './views/overview.tsx';
import { age, clock, count, keysInWords, number, STATES, timeZone, trouble } from './words.ts';

const LOOK_EVERY_MS = 5000;
/** How long before its end a session says so. */
const WARN_BEFORE_MS = 120_000;

export function App() {
  const state = useShared(sessionState);
  const route = useRoute();
  return (
    <>
      <div class="unseen" role="log" id="announcements">
        {useShared(announcements).map(({ id, text }) => (
          <p key={id}>{text}</p>
        ))}
      </div>
      {state.kind === 'open' ? (
        <LoggedIn route={route} />
      ) : (
        <>
          <header class="banner">
            <span class="name">oncegate console</span>
          </header>
          <main class="narrow">{state.kind === 'none' ? <LogIn why={state.why} /> : <Waiting />}</main>
        </>
      )}
    </>
  );
}

/** The gateway has not said yet whether there is a session. */
function Waiting() {
  const isLost = useShared(lostAtMs) !== undefined;
  usePolling(async () => isLost && (await readSession()), LOOK_EVERY_MS);
  return (
    <p>{isLost ? 'The gateway does not answer. The console tries again every 5 seconds.' : 'Loading …'}</p>
  );
}

function LoggedIn({ route }: { route: Route }) {
  usePolling(readOverview, LOOK_EVERY_MS);
  const now = useShared(overview);
  const news = now && `${STATES[now.state].word}. ${keysInWords(now.doubts)}.`;
  useEffect(() => {
    if (news) announce(news);
  }, [news]);
  return (
    <>
      <button type="button" class="skip" onClick={() => document.querySelector('h1')?.focus()}>
        Skip to the content
      </button>
      <Banner route={route} />
      <main>
        <Lost />
        <SessionEnds />
        <Observing />
        <View route={route} />
      </main>
      <footer class="muted">Times are in this browser’s time zone, {timeZone()}.</footer>
    </>
  );
}

function View({ route }: { route: Route }) {
  if (route.view === 'doubts') return <DoubtsView query={route.query} />;
  if (route.view === 'lookup') return <LookUpView recordId={route.recordId} />;
  return <OverviewView />;
}

function Banner({ route }: { route: Route }) {
  const state = useShared(sessionState);
  const doubts = useShared(overview)?.doubts;
  const isKnown = doubts?.keys != null && !doubts.isLate;
  const keys = isKnown ? doubts.keys && number(doubts.keys) : doubts && '?';
  useEffect(() => {
    document.title = `${keys ? `(${keys} in doubt) ` : ''}${VIEWS[route.view]} · oncegate console`;
  }, [route.view, keys]);
  const leave = async () => {
    const problem = trouble(await logOut());
    if (problem) announce(`You are still logged in. ${problem}`);
  };
  return (
    <header class="banner">
      <span class="name">oncegate console</span>
      <nav aria-label="Views">
        <ul>
          {(Object.keys(VIEWS) as ViewName[]).map((view) => (
            <li key={view}>
              <a href={linkTo(view)} aria-current={view === route.view ? 'page' : undefined}>
                {VIEWS[view]}
                {view === 'doubts' && keys ? ` (${keys})` : ''}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="tools">
        {state.kind === 'open' && <span class="muted">Logged in as {state.session.name}</span>}
        <button type="button" onClick={leave}>
          Log out
        </button>
      </div>
    </header>
  );
}

/** Says that the gateway does not answer, and when it answers again. */
function Lost() {
  const sinceMs = useShared(lostAtMs);
  const [was, setWas] = useState(false);
  useEffect(() => {
    if (sinceMs !== undefined) {
      setWas(true);
      announce('The gateway does not answer.');
    } else if (was) announce('The gateway answers again.');
  }, [sinceMs]);
  if (sinceMs === undefined) return null;
  return (
    <p class="notice bad">
      <strong>The gateway does not answer</strong> since {clock(sinceMs)}. The console tries again every 5
      seconds. What you see is from before.
    </p>
  );
}

function Observing() {
  if (useShared(overview)?.mode !== 'observe') return null;
  return (
    <p class="notice bad">
      <strong>Nothing is protected.</strong> Under idempotency.mode: observe the gateway sends every request
      to the backend, duplicates included.
    </p>
  );
}

/** The two ends of a session: the one that any use moves, and the fixed one. */
function SessionEnds() {
  const state = useShared(sessionState);
  const [nowMs, setNowMs] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNowMs(Date.now()), 10_000);
    return () => clearInterval(timer);
  }, []);
  if (state.kind !== 'open') return null;
  const { nowAt, idleEndsAt, endsAt } = state.session;
  const [openedMs, idleMs] = [Date.parse(nowAt), Date.parse(idleEndsAt) - Date.parse(nowAt)];
  const idleLeftMs = state.usedAtMs + idleMs - nowMs;
  const leftMs = state.openedAtMs + Date.parse(endsAt) - openedMs - nowMs;
  const soonest = Math.min(idleLeftMs, leftMs);
  if (soonest > WARN_BEFORE_MS) return null;
  const inMinutes = count(Math.max(1, Math.round(soonest / 60_000)), 'minute');
  return (
    <div class="notice warn" role="status">
      Your session ends in about {inMinutes}
      {leftMs <= idleLeftMs ? `, ${age(Date.parse(endsAt) - openedMs)} after you logged in.` : '. '}
      {leftMs > idleLeftMs && (
        <button type="button" onClick={() => void readSession()}>
          Stay logged in
        </button>
      )}
    </div>
  );
}
