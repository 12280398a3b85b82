import type {
  RecordsPage,
  ResolvedRecord,
  ShownRecord,
  SortedPage,
  StoredResponse,
} from '../doubts/record-view.ts';
import type {
  BackgroundHeader,
  ConsoleProblem,
  FindRequest,
  LoginAnswer,
  LoginRequest,
  Overview,
  ResolveForm,
  SecretHeader,
  Session,
} from './contract.ts';
import { Shared } from './store.ts';

/** `unreachable`: no answer, or one that does not come from the gateway. Whether a request was executed is then not known. */
export type Answer<T> = { kind: 'ok'; value: T } | Refused | { kind: 'unreachable' };

export interface Refused {
  kind: 'refused';
  problem: ConsoleProblem;
  retryAfterMs: number | undefined;
}

const SECRET: SecretHeader = 'X-Console-Secret';
/** The tab keeps the session's secret there, so that it outlives a reload. */
const STORED = 'oncegate_console';
const BACKGROUND: BackgroundHeader = 'X-Console-Background';
const SESSION = '/console/session';
const ANSWER_WITHIN_MS = 20_000;

/** `unknown`: not asked yet. `ended`: there was one, and it ended without the person's wish. */
export type SessionState =
  | { kind: 'unknown' }
  | { kind: 'none'; why?: 'ended' | 'logged_out' | 'used_link' }
  | { kind: 'open'; session: Session; openedAtMs: number; usedAtMs: number };

export const sessionState = new Shared<SessionState>({ kind: 'unknown' });
/** Since when the gateway has not answered, if it does not. In this browser's Unix milliseconds. */
export const lostAtMs = new Shared<number | undefined>(undefined);

/** By how much the gateway's clock is ahead of this browser's, to the second. */
let aheadMs = 0;
export const gatewayNowMs = (): number => Date.now() + aheadMs;

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
  headers[SECRET] = sessionStorage.getItem(STORED) ?? '';
  if (body) headers['Content-Type'] = 'application/json';
  try {
    const response = await fetch(path, {
      ...{ method, headers, cache: 'no-store', redirect: 'error' },
      signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    const date = Date.parse(response.headers.get('Date') ?? '');
    if (!Number.isNaN(date)) aheadMs = date - Date.now();
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
  if (answer.problem.code === 'not_logged_in') close('ended');
  return answer;
}

function close(why?: 'ended' | 'logged_out'): void {
  sessionStorage.removeItem(STORED);
  sessionState.set({ kind: 'none', ...(why && { why }) });
}

export async function readSession(): Promise<void> {
  const answer = await call<Session>(SESSION);
  if (answer.kind === 'ok') sessionState.set(opened(answer.value));
  else if (answer.kind === 'refused') close(open() && 'ended');
}

function opened(session: Session): SessionState {
  const nowMs = Date.now();
  return { kind: 'open', session, openedAtMs: nowMs, usedAtMs: nowMs };
}

export async function logIn(token: string): Promise<Answer<LoginAnswer>> {
  const body: LoginRequest = { token };
  const answer = await call<LoginAnswer>(SESSION, { method: 'POST', body });
  if (answer.kind !== 'ok') return answer;
  sessionStorage.setItem(STORED, answer.value.secret);
  sessionState.set(opened(answer.value));
  return answer;
}

export async function logOut(): Promise<Answer<void>> {
  const answer = await ask<void>(SESSION, { method: 'DELETE' });
  if (answer.kind === 'ok') close('logged_out');
  return answer;
}

const pathOf = (recordId: string, rest = '') => `/records/${encodeURIComponent(recordId)}${rest}`;

export const api = {
  overview: (afterMs: number) => ask<Overview>(`/console/api/overview?after=${afterMs}`, { isTimed: true }),
  /** @param query the members of `SortedRequest` that differ from the defaults, with the API's names */
  doubts: (query: Record<string, string>, isTimed: boolean) =>
    ask<SortedPage>(`/records?${new URLSearchParams({ in_doubt: 'true', sort: 'oldest', ...query })}`, {
      isTimed,
    }),
  /** One page of those that the request has started. @param query `open`: only those that are not completed */
  startedBy: (query: { request_id: string; open: string; cursor?: string }) =>
    ask<RecordsPage>(`/records?${new URLSearchParams({ limit: '1000', ...query })}`),
  find: (request: FindRequest) => ask<ShownRecord>('/records/find', { method: 'POST', body: request }),
  record: (recordId: string) => ask<ShownRecord>(pathOf(recordId)),
  body: (recordId: string) => ask<StoredResponse>(pathOf(recordId, '/body')),
  resolve: (recordId: string, form: ResolveForm) =>
    ask<ResolvedRecord>(pathOf(recordId, '/resolve'), { method: 'POST', body: form }),
};
