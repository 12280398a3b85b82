/**
 * The contract between the console's page and the admin port: every URL, method, request, response and problem code. Types only,
 * so that the page's bundle contains nothing of the gateway.
 *
 * ## The page
 *
 * | request | answer |
 * |---|---|
 * | `GET /` | 302 to `/console/`; a list of the paths when the console is off |
 * | `GET /console` | 302 to `/console/` |
 * | `GET /console/` | `index.html` of the bundle. Without a bundle, 503 and a plain page that says how to build it |
 * | `GET /console/assets/NAME` | a file of the bundle |
 *
 * `npm run pages` writes the bundle: `index.html`, and in `assets/` files with a hash of their contents in their names. Those are
 * `immutable`, every other answer is `no-store`. The page keeps its place in the fragment (`#/...`), because every other path under
 * `/console/` is a problem.
 *
 * The Content-Security-Policy permits scripts, styles, images (also `data:`) and connections of the own origin only: no inline
 * script, no inline `<style>`, no `style="..."` in HTML (setting `element.style.x` from a script is permitted), no `eval`, and,
 * because of `require-trusted-types-for 'script'; trusted-types 'none'`, no `innerHTML`.
 *
 * ## The session
 *
 * | request | request's body | answer |
 * |---|---|---|
 * | `POST /console/session` | {@link LoginRequest} | 200 {@link LoginAnswer} and a cookie |
 * | `GET /console/session` | | 200 {@link Session}; 401 `not_logged_in` |
 * | `DELETE /console/session` | | 204, the cookie is removed. Also 204 if there was no session |
 *
 * The cookie is HttpOnly: the page never sees it, and sends it with `fetch`'s default `credentials: 'same-origin'`. Browsers send it to
 * every port of the host, so it opens nothing without {@link LoginAnswer.secret}, which the page keeps in `sessionStorage`.
 * Sessions live in memory: after a restart of the gateway every request is answered 401 `not_logged_in`.
 *
 * ## The API
 *
 * The page gets the same records as programs do, with the views of `src/doubts/record-view.ts`. A session takes the place of the bearer token.
 *
 * | request | request's body | answer | permission |
 * |---|---|---|---|
 * | `GET /console/api/overview?after=UP_MS` | | {@link Overview}, with the samples after that time | read |
 * | `GET /records?in_doubt=true&open=true&cursor=CURSOR&merchant=MERCHANT&request_id=ID` | | `RecordsPage` | read |
 * | `GET /records?in_doubt=true&sort=SORT&page=1&limit=100&merchant=&operation=&cause=&older_than_ms=` | | `SortedPage` | read |
 * | `POST /records/find` | {@link FindRequest} | `ShownRecord` | read |
 * | `GET /records/RECORD_ID` | | `ShownRecord` | read |
 * | `GET /records/RECORD_ID/body` | | `StoredResponse` with the first MiB of the body; the gateway logs who read it | bodies |
 * | `POST /records/RECORD_ID/resolve` | {@link ResolveForm} | `ResolvedRecord` | resolve |
 *
 * `RECORD_ID` is safe in a fragment or a link. Its first digits are enough, at least 4; if several ids begin with them, the answer is
 * 409 `ambiguous`. `request_id` is that of the request that started a record: `open=true` looks among those that are not completed, and
 * otherwise among all. A page may be empty and have a cursor: `read` says how many records were looked at.
 *
 * ## Headers of requests
 *
 * - Every request except the login needs {@link SecretHeader} with {@link LoginAnswer.secret}.
 * - Every POST needs `Content-Type: application/json` and a body of at most 2 MiB (the login: 4 KiB).
 * - A request that a timer makes, without any input of the person since the request before, sends {@link BackgroundHeader}
 *   with `1`. It does not count as use: without any other request the session ends after 30 minutes.
 *
 * ## Problems
 *
 * Every answer with a status of 400 or more is `application/problem+json` with the members of {@link ConsoleProblem}. 405 has
 * `Allow`; 429, 409 `alive` and 503 may have `Retry-After` (whole seconds).
 *
 * All times are ISO 8601 (`...At`) or milliseconds (`...Ms`), all by the gateway's clock: compare them with {@link Overview.nowAt},
 * {@link Session.nowAt} or the `Date` of an answer, not with the browser's clock.
 */

import type { RecordView, ResolveRequest } from '../doubts/record-view.ts';
import type { AdminProblemCode } from '../lib/problem-table.ts';

/** The request header with the session's secret. */
export type SecretHeader = 'X-Console-Secret';
/** The request header of requests that a timer makes. Its value is `1`. */
export type BackgroundHeader = 'X-Console-Background';

// Problems

/** The body of every answer with a status of 400 or more. */
export interface ConsoleProblem {
  /** `urn:oncegate:problem:admin_CODE`, or `records_CODE` for what is about records */
  type: string;
  /** What is wrong in general, in words for people. */
  title: string;
  status: number;
  /** One sentence about this request, for people. */
  detail: string;
  code: AdminProblemCode;
  /** The record as it is now, with `alive` and `changed`. */
  record?: RecordView;
  /** With `absent`, the id of the record that is missing. With `ambiguous`, some of those that begin with the digits. */
  recordIds?: string[];
}

// Session

export interface LoginRequest {
  /** `admin.token`, one of `admin.tokens`, or on the same machine the code of a link that `oncegate start` has printed. */
  token: string;
}

/**
 * `read`: everything but the rest; every session has it. `resolve`: resolve keys in doubt. `bodies`: see stored bodies and all
 * header values of stored responses.
 */
export type Permission = 'read' | 'resolve' | 'bodies';

export interface LoginAnswer extends Session {
  /** The value of {@link SecretHeader}. No other answer has it. */
  secret: string;
}

export interface Session {
  /** The name of the token: `admin` for `admin.token`. It is kept as `by` in the audit trail. */
  name: string;
  may: Permission[];
  nowAt: string;
  /** When the session ends if it is not used: 30 minutes after the last request without {@link BackgroundHeader}. */
  idleEndsAt: string;
  /** When it ends in any case: 8 hours after the login. */
  endsAt: string;
}

// Overview

export interface Overview {
  nowAt: string;
  /** How long the gateway runs. */
  upMs: number;
  /**
   * From what merchants got lately, then from the checks, then from the doubts. `failing`: fewer than half of five or more requests
   * that should get a result got one, or a check fails. `warning`: it works, but something needs attention. `unknown`: neither, but
   * no request has ended since the start.
   */
  state: 'ok' | 'warning' | 'failing' | 'unknown';
  /** What became of the requests of the last minute, or since the start if that is less. `null`: nothing can be said yet. */
  lately: Lately | null;
  /** Requests that hold a slot for the backend for longer than five seconds. */
  longInFlight: number;
  /** The checks of /readyz. */
  checks: { name: string; ok: boolean; detail: string; warnings?: string[] }[];
  doubts: Doubts;
  /** The samples of the last hour, or those after the one that the page named, oldest first. */
  samples: Sample[];
  build: { version: string; commit: string };
  /** `observe`: nothing is protected. Say so in a conspicuous place. */
  mode: 'protect' | 'observe';
}

/** What the store counts, for all gateways together. `null`: this is not known (yet). */
export interface Doubts {
  /** The number of keys in doubt, those with a dead owner included. */
  keys: number | null;
  /** Age of the oldest. 0 if there is none. */
  oldestMs: number | null;
  countedAt: string | null;
  /** The count should be newer: nobody knows how many there are now. */
  isLate: boolean;
}

/** What the gateway has counted since its start. */
export interface Counted {
  /** {@link Overview.upMs} at that moment. */
  upMs: number;
  /** Requests that ended, by what became of them. */
  requests: Record<OutcomeGroup, number>;
  /** Those of `refused` whose secret key is missing, not valid or without the scope. */
  keysRefused: number;
  /** Those of `executed` and `passedOn` that got a 5xx status of the backend. */
  backendErrors: number;
}

export interface Lately extends Omit<Counted, 'upMs'> {
  /** How long the time was. */
  ms: number;
  /** Requests that should get a new result of the backend: all but those that were refused or replayed. */
  due: number;
  /** Those of them that got one, 5xx not counted. */
  results: number;
}

/** The gateway takes one every five seconds. */
export interface Sample extends Counted {
  /** How long merchants waited, the gateway's share of it, and the backend's. Of the time since the sample before. */
  answerMs: Percentiles | null;
  gatewayMs: Percentiles | null;
  backendMs: Percentiles | null;
  /** Requests in flight at that moment, and duplicates that waited for the first request. */
  inFlight: number;
  waiting: number;
  inDoubt: Doubts['keys'];
}

/** Half of the requests took at most `half` milliseconds, and 99 % at most `most`. `null`: there was no request. */
export interface Percentiles {
  half: number;
  most: number;
}

/**
 * `executed`: the request of a new key was sent and answered. `replayed`: answered from a record. `passedOn`: sent and answered
 * without a key. `unknown`: the outcome cannot be known (new and repeated answers). `refused`: not sent, because of the request or
 * its merchant (credentials, scope, malformed, rate, a key in use). `notServed`: no result, because of the gateway, the store or
 * the backend, which also can say that it did not execute; or the merchant disconnected before.
 */
export type OutcomeGroup = 'executed' | 'replayed' | 'passedOn' | 'unknown' | 'refused' | 'notServed';

// Records

export interface FindRequest {
  /** The merchant code. */
  merchant: string;
  /** The idempotency key, as the merchant sent it. */
  key: string;
  /** The layer whose record it is. Default: the configuration's. */
  layer?: string;
}

/**
 * How a session resolves a key. `completed`: the backend executed it; retries get the response, or 409 `response_not_stored` without
 * one. `released`: the backend surely did not execute it; the next retry is sent and can pay again if this is wrong.
 */
export interface ResolveForm extends Pick<ResolveRequest, 'as' | 'execution' | 'reason' | 'status' | 'body'> {
  /** Who, beside the session's name: one line, at most 60 characters. The audit trail says `PERSON (NAME)`. */
  person?: string;
  headers?: Record<string, string | string[]>;
}
