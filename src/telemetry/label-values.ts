import { problemCodes } from '../lib/problem-table.ts';

// The words that labels of metrics and fields of the log may be.

/** How a request can end: the words of the gateway, and the codes of its own answers. */
export const OUTCOMES = [
  ...['executed', 'replayed', 'released', 'forwarded', 'passed_through', 'upgraded', 'merchant_gone'],
  ...problemCodes,
];

export const STORE_COMMANDS = [
  ...['start', 'peek', 'restart', 'renew', 'complete', 'release', 'in_doubt', 'health'],
  ...['get', 'expires_in', 'list', 'resolve', 'audit', 'read_mark', 'mark'],
];

/**
 * What `mode: protect` would have done with a request that was sent. It would have stopped the duplicates: `replayed`, `waited`,
 * `mismatch` and `in_doubt`.
 */
export const WOULD = [
  /** Sent: the key is new. */
  'executed',
  /** The first request's result would have been replayed, or 409 response_not_stored if it is too large to be stored. */
  'replayed',
  /** It would have waited for the first request: its result, or 409 request_in_flight. */
  'waited',
  /** 422 idempotency_key_reused. */
  'mismatch',
  /** 409 outcome_unknown, or with `inDoubt: lookup` what the lookup says. */
  'in_doubt',
  /** Sent, although the first request may have been executed (`inDoubt: retry`). */
  'sent_again',
  /** 400 idempotency_key_invalid. */
  'invalid_key',
  /** 400 idempotency_key_required. */
  'key_required',
  /** 413 body_too_large. */
  'body_too_large',
] as const;
export type Would = (typeof WOULD)[number];

/** What warnings are about, as on /readyz and at the start. */
export const WARNED_ABOUT = ['store', 'operations', 'keys', 'certificates', 'configuration'] as const;
export type WarnedAbout = (typeof WARNED_ABOUT)[number];
