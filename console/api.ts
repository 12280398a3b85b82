import type {
  BackgroundHeader,
  Configuration,
  ConsoleProblem,
  CsrfHeader,
  DoubtsPage,
  FindRequest,
  FoundRecord,
  LoginRequest,
  Overview,
  ResolvedAnswer,
  ResolveRecordRequest,
  Series,
  Session,
  StoredBody,
} from '../src/admin/console/contract.ts';
import { Shared } from './store.ts';

/** `unreachable`: no answer, or one that does not come from the gateway. Whether a request was executed is then not known. */
export type Answer<T> = { kind: 'ok'; value: T } | Refused | { kind: 'unreachable' };

export interface Refused {
  kind: 'refused';
  problem: ConsoleProblem;
  retryAfterMs: number | undefined;
}

const CSRF: CsrfHeader = 'X-Console-Csrf';
const BACKGROUND: BackgroundHeader = 'X-Console-Background';
const ANSWER_WITHIN_MS = 20_000;

/** `unknown`: not asked yet. `ended`: there was one, and it ended without the person's wish. */
export type SessionState =
  | { kind: 'unknown' }
  | { kind: 'none'; why?: 'ended' | 'logged_out' }
  | { kind: 'open'; session: Session; openedAtMs: number; usedAtMs: number };

export const sessionState = new Shared<SessionState>({ kind: 'unknown' });
/** When the gateway stopped to answer, in this browser's Unix milliseconds. Undefined: it answers. */
export const lostAtMs = new Shared<number | undefined>(undefined);

/** Whether the person did anything since the request before. */
let isUsed = false;
for (const event of ['pointerdown', 'keydown', 'wheel'])
  addEventListener(event, () => (isUsed = true), { capture: true, passive: true });

interface Call {
  method?: 'GET' | 'POST' | 'DELETE';
  body?: object;
  /** A timer makes this request. */
  isTimed?: boolean;
}

const open = () => (sessionState.value.kind === 'open' ? sessionState.value : undefined);

async function call<T>(
  path: string,
  { method = 'GET', body, isTimed = false }: Call = {},
): Promise<Answer<T>> {
  const headers: Record<string, string> = { Accept: 'application/json' };
  const isBackground = isTimed && !isUsed;
  if (isBackground) headers[BACKGROUND] = '1';
  else isUsed = false;
  const csrf = open()?.session.csrf;
  if (method !== 'GET' && csrf !== undefined) headers[CSRF] = csrf;
  if (body) headers['Content-Type'] = 'application/json';
  try {
    const response = await fetch(`/console/${path}`, {
      ...{ method, headers, cache: 'no-store', redirect: 'error' },
      signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    const answer = await readAnswer<T>(response);
    lostAtMs.set(answer.kind === 'unreachable' ? (lostAtMs.value ?? Date.now()) : undefined);
    const state = open();
    if (answer.kind === 'ok' && !isBackground && state) state.usedAtMs = Date.now();
    return answer;
  } catch {
    lostAtMs.set(lostAtMs.value ?? Date.now());
    return { kind: 'unreachable' };
  }
}

async function readAnswer<T>(response: Response): Promise<Answer<T>> {
  if (response.status === 204) return { kind: 'ok', value: undefined as T };
  const value = await response.json();
  if (response.ok) return { kind: 'ok', value };
  if (typeof value?.code !== 'string') return { kind: 'unreachable' };
  const seconds = Number(response.headers.get('Retry-After') ?? Number.NaN);
  const retryAfterMs = Number.isFinite(seconds) ? seconds * 1000 : undefined;
  return { kind: 'refused', problem: value, retryAfterMs };
}

/** A call within a session. When the session has ended, the page shows the login. */
async function ask<T>(path: string, options: Call = {}): Promise<Answer<T>> {
  const answer = await call<T>(path, options);
  if (answer.kind !== 'refused') return answer;
  const { code } = answer.problem;
  if (code === 'not_logged_in') sessionState.set({ kind: 'none', why: 'ended' });
  if (code !== 'csrf') return answer;
  // The user has logged in again in another tab, so this tab's CSRF token is old. The gateway did nothing for the request.
  await readSession();
  return await call<T>(path, options);
}

export async function readSession(): Promise<void> {
  const answer = await call<Session>('session');
  if (answer.kind === 'ok') sessionState.set(opened(answer.value));
  else if (answer.kind === 'refused')
    sessionState.set({ kind: 'none', ...(open() ? { why: 'ended' as const } : {}) });
}

function opened(session: Session): SessionState {
  const nowMs = Date.now();
  return { kind: 'open', session, openedAtMs: nowMs, usedAtMs: nowMs };
}

export async function logIn(token: string): Promise<Answer<Session>> {
  const body: LoginRequest = { token };
  const answer = await call<Session>('session', { method: 'POST', body });
  if (answer.kind === 'ok') sessionState.set(opened(answer.value));
  return answer;
}

export async function logOut(): Promise<Answer<void>> {
  const answer = await ask<void>('session', { method: 'DELETE' });
  if (answer.kind === 'ok') sessionState.set({ kind: 'none', why: 'logged_out' });
  return answer;
}

const scoped = (scope: string, rest = '') => `api/records/${encodeURIComponent(scope)}${rest}`;
const timed: Call = { isTimed: true };

export const api = {
  overview: () => ask<Overview>('api/overview', timed),
  series: (since: string | undefined) =>
    ask<Series>(`api/series${since === undefined ? '' : `?since=${encodeURIComponent(since)}`}`, timed),
  /** @param query without the members that do not apply */
  doubts: (query: { cursor?: string; merchant?: string }, isTimed: boolean) =>
    ask<DoubtsPage>(`api/doubts?${new URLSearchParams(query)}`, { isTimed }),
  find: (request: FindRequest) => ask<FoundRecord>('api/records/find', { method: 'POST', body: request }),
  record: (scope: string) => ask<FoundRecord>(scoped(scope)),
  body: (scope: string) => ask<StoredBody>(scoped(scope, '/body')),
  resolve: (scope: string, request: ResolveRecordRequest) =>
    ask<ResolvedAnswer>(scoped(scope, '/resolve'), { method: 'POST', body: request }),
  configuration: () => ask<Configuration>('api/configuration'),
};
