import type { RecordView } from '../doubts/records.ts';
import { type Answer, gatewayNowMs } from './api.ts';
import type { Doubts, Overview } from './contract.ts';

/** `good`, `warn` and `bad` are the classes of style.css. */
export const STATES: Record<
  Overview['state'],
  { word: string; sign: string; tone: 'good' | 'warn' | 'bad' }
> = {
  ok: { word: 'Well', sign: '✓', tone: 'good' },
  warning: { word: 'Needs attention', sign: '!', tone: 'warn' },
  failing: { word: 'Failing', sign: '✕', tone: 'bad' },
};

/** The store's number, which is that of all merchants. */
export function doubtsInWords({ keys, oldestMs, countedAt }: Doubts): string {
  if (keys === null || countedAt === null) return 'not counted yet.';
  const oldest = keys > 0 ? `, the oldest for ${age(oldestMs ?? 0)}` : '';
  return `${number(keys)}${oldest} (counted at ${moment(countedAt)}).`;
}

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
      word: 'In doubt, owner gone',
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
