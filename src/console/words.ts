import type { RecordView } from '../doubts/record-view.ts';
import { type Answer, gatewayNowMs } from './api.ts';
import type { Doubts, Lately, Overview } from './contract.ts';

/** `good`, `warn` and `bad` are the classes of style.css. */
export const STATES: Record<
  Overview['state'],
  { word: string; check: string; sign: string; tone: 'good' | 'warn' | 'bad' | '' }
> = {
  ok: { word: 'In order', check: 'Passes', sign: '✓', tone: 'good' },
  warning: { word: 'Needs attention', check: 'Warning', sign: '!', tone: 'warn' },
  failing: { word: 'Failing', check: 'Fails', sign: '✕', tone: 'bad' },
  unknown: { word: 'Not known yet', check: 'Not known yet', sign: '?', tone: '' },
};

/** What became of requests: the name of each group, and what it means. */
export const GROUPS: Record<keyof Lately['requests'] | 'backendErrors', { name: string; meaning: string }> = {
  executed: { name: 'Executed', meaning: 'A new key: sent to the backend, and answered.' },
  replayed: { name: 'Replayed', meaning: 'A retry: answered with the stored result. Nothing was sent.' },
  passedOn: {
    name: 'Passed on',
    meaning: 'Without a key, such as a balance: sent to the backend, and answered.',
  },
  refused: {
    name: 'Refused',
    meaning: 'Not sent, because of the request itself: a wrong secret key, too many requests, a key in use.',
  },
  notServed: {
    name: 'Not served',
    meaning:
      'No result: backend, store or gateway was not available, the backend refused without executing (401, 429), or the merchant disconnected.',
  },
  unknown: {
    name: 'Outcome unknown',
    meaning: 'The backend may have executed it, and did not say. The merchant was told so.',
  },
  backendErrors: {
    name: 'Backend errors',
    meaning: 'New answers of the backend with a status of 500 or more. They count above too.',
  },
};

/** What merchants got lately, and what may wait for a backend that hangs, in a few sentences. */
export function servedInWords({ state, lately, longInFlight }: Served): string {
  if (state === 'unknown') return 'Nothing has been observed yet: no request has ended since the start.';
  const ended = lately ? endedInWords(lately) : 'What merchants get is not known yet.';
  if (longInFlight === 0) return ended;
  return `${ended} In flight to the backend for longer than 5 seconds: ${count(longInFlight, 'request')}.`;
}

type Served = Pick<Overview, 'state' | 'lately' | 'longInFlight'>;

function endedInWords({ ms, due, results, requests, keysRefused }: Lately): string {
  const { refused, replayed } = requests;
  const time = `in the last ${ms > 50_000 ? 'minute' : age(ms)}`;
  const all = due + replayed + refused;
  if (all === 0) return `No request has ended ${time}.`;
  const besides = replayed > 0 ? `, besides ${count(replayed, 'replay')}` : '';
  const ofBackend = due > 0 ? resultsInWords(due, results, time) : `No request needed the backend ${time}`;
  const got = `${ofBackend}${besides}.`;
  if (refused <= all / 2) return got;
  const ofKeys = keysRefused > 0 ? `, ${number(keysRefused)} because of the secret key` : '';
  const most = `Most requests are refused: ${number(refused)} of ${number(all)} ${time}${ofKeys}.`;
  return refused === all ? most : `${most} ${got}`;
}

function resultsInWords(due: number, results: number, time: string): string {
  const share = `${number(results)} of ${count(due, 'request')} that needed the backend got a result ${time}`;
  if (results === due) return `Merchants get results: ${share}`;
  // Rounded down: 100 % would say that all of them did.
  const percent = `${(Math.floor((results / due) * 1000) / 10).toFixed(1)} %`;
  if (results / due >= 0.99) return `Merchants get results: ${share} (${percent})`;
  // As `state` has it: few requests say little.
  if (results / due >= 0.5 || due < 5) return `Some merchants get no result: ${share} (${percent})`;
  return `Merchants are not served: ${share} (${percent})`;
}

/** The store's number, which is that of all merchants. */
export function doubtsInWords({ keys, oldestMs, countedAt, isLate }: Doubts): string {
  if (keys === null || countedAt === null) return 'not known, because the store has not been counted yet.';
  const oldest = keys > 0 ? `, the oldest for ${age(oldestMs ?? 0)}` : '';
  const counted = `${number(keys)}${oldest} (counted at ${moment(countedAt)})`;
  return isLate ? `not known now. The last count was ${counted}.` : `${counted}.`;
}

/** How many keys are in doubt, or that nobody knows. */
export const keysInWords = ({ keys, isLate }: Doubts): string =>
  keys === null || isLate ? 'It is not known how many keys are in doubt' : `${count(keys, 'key')} in doubt`;

/** "4 minutes", "2 hours 5 minutes": two units at most. */
export function age(ms: number): string {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return count(s, 'second');
  const min = Math.floor(s / 60);
  if (min < 60) return two(min, 'minute', s % 60, 'second');
  const h = Math.floor(min / 60);
  if (h < 48) return two(h, 'hour', min % 60, 'minute');
  return two(Math.floor(h / 24), 'day', h % 24, 'hour');
}

export const count = (n: number, unit: string): string => `${number(n)} ${unit}${n === 1 ? '' : 's'}`;

const two = (n: number, unit: string, rest: number, restUnit: string): string =>
  rest === 0 ? count(n, unit) : `${count(n, unit)} ${count(rest, restUnit)}`;

export const number = (n: number): string => n.toLocaleString('en');

/** Date and time to the second, in the browser's time zone, as ISO 8601 writes them. */
export function moment(iso: string): string {
  const at = new Date(iso);
  const [year, month, day] = [at.getFullYear(), at.getMonth() + 1, at.getDate()].map(twoDigits);
  return `${year}-${month}-${day} ${clock(at.getTime())}`;
}

export function clock(ms: number): string {
  const at = new Date(ms);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map(twoDigits).join(':');
}

/** The browser's time zone as it is now, such as `UTC+01:00`. */
export function timeZone(): string {
  const minutes = -new Date().getTimezoneOffset();
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return minutes === 0 ? 'UTC' : `UTC${minutes < 0 ? '-' : '+'}${twoDigits(hours)}:${twoDigits(rest)}`;
}

const twoDigits = (n: number): string => String(n).padStart(2, '0');

/** Whether it needs somebody who resolves it. */
export const isInDoubt = ({ state, ownerGone }: RecordView): boolean =>
  state === 'in_doubt' || ownerGone === true;

/** How long its merchant has waited: the time since it started. Undefined if it is not in doubt. */
export const inDoubtMs = (record: RecordView): number | undefined =>
  isInDoubt(record) && record.createdAt
    ? Math.max(0, gatewayNowMs() - Date.parse(record.createdAt))
    : undefined;

/** What the state of a record is, and what it means for the merchant's retries. */
export function recordState(record: RecordView): { word: string; meaning: string; tone: string } {
  if (record.state === 'unreadable')
    return {
      word: 'Unreadable',
      meaning: `The record cannot be read${record.reason ? ` (${record.reason})` : ''}. Retries get 503, and nothing is sent.`,
      tone: 'bad',
    };
  if (record.state === 'completed')
    return {
      word: 'Completed',
      meaning: 'The backend executed the request. Retries get its result.',
      tone: 'good',
    };
  if (record.state === 'in_doubt')
    return {
      word: 'In doubt',
      meaning:
        'The backend may have executed the request, and its answer is not known. Retries get 409 outcome_unknown.',
      tone: 'bad',
    };
  if (record.ownerGone)
    return {
      word: 'In doubt, gateway gone',
      meaning:
        'The gateway that sent the request shows no sign of life. The backend may have executed it. Retries get 409 outcome_unknown.',
      tone: 'bad',
    };
  return {
    word: 'Executing',
    meaning: 'The request is at the backend now. Retries wait for its result.',
    tone: 'warn',
  };
}

/** Says what the gateway refused, or that it did not answer, if one of these happened. */
export function trouble(answer: Answer<unknown>): string | undefined {
  if (answer.kind === 'ok') return undefined;
  if (answer.kind === 'unreachable') return 'The gateway did not answer.';
  const { title, detail } = answer.problem;
  const again = answer.retryAfterMs === undefined ? '' : ` Try again in ${age(answer.retryAfterMs)}.`;
  const what = title.endsWith('.') ? title : `${title}.`;
  return `${detail && detail !== title ? `${what} ${detail}` : what}${again}`;
}
