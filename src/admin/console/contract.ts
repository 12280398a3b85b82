/**
 * The contract between the console's page and the admin port: every URL, method, request, response and problem code. Types only,
 * so that the page's bundle contains nothing of the gateway.
 *
 * ## The page
 *
 * | request | answer |
 * |---|---|
 * | `GET /` | 302 to `/console/`; a short page of links when the console is off |
 * | `GET /console` | 302 to `/console/` |
 * | `GET /console/` | `index.html` of the bundle. Without a bundle, 503 and a plain page that says how to build it |
 * | `GET /console/assets/NAME` | a file of the bundle |
 *
 * The bundle is the folder `dist/console/` (`npm run pages` writes it): `index.html`, and `assets/` with files named
 * `NAME-HASH.EXTENSION`, such as `app-1A2B3C4D.js` (the hash has 8 or more letters and digits; the extension is js, css, svg,
 * png, ico, woff2 or map). The page keeps its place in the fragment (`#/...`), because every other path under `/console/` is a
 * problem. Assets are `immutable`, every other answer is `no-store`.
 *
 * The Content-Security-Policy permits scripts, styles, images (also `data:`) and connections of the own origin only: no inline
 * script, no inline `<style>`, no `style="..."` in HTML (setting `element.style.x` from a script is permitted), no `eval`, and,
 * because of `require-trusted-types-for 'script'; trusted-types 'none'`, no `innerHTML`.
 *
 * ## The session
 *
 * | request | request's body | answer |
 * |---|---|---|
 * | `POST /console/session` | {@link LoginRequest} | 200 {@link Session} and a cookie |
 * | `GET /console/session` | | 200 {@link Session}; 401 `not_logged_in` |
 * | `DELETE /console/session` | | 204, the cookie is removed. Also 204 if there was no session |
 *
 * The cookie is HttpOnly: the page never sees it, and sends it with `fetch`'s default `credentials: 'same-origin'`.
 * Sessions live in memory: after a restart of the gateway every request is answered 401 `not_logged_in`.
 *
 * ## The API
 *
 * | request | request's body | answer | permission |
 * |---|---|---|---|
 * | `GET /console/api/overview` | | {@link Overview} | read |
 * | `GET /console/api/series?since=CURSOR` | | {@link Series} | read |
 * | `GET /console/api/doubts?cursor=CURSOR&merchant=MERCHANT` | | {@link DoubtsPage} | read |
 * | `POST /console/api/records/find` | {@link FindRequest} | {@link FoundRecord} | read |
 * | `GET /console/api/records/SCOPE` | | {@link FoundRecord} | read |
 * | `GET /console/api/records/SCOPE/body` | | {@link StoredBody} | bodies |
 * | `POST /console/api/records/SCOPE/resolve` | {@link ResolveRecordRequest} | {@link ResolvedAnswer} | resolve |
 * | `GET /console/api/configuration` | | {@link Configuration} | read |
 *
 * The look-up of a merchant's key is a POST, so that idempotency keys do not get into the logs of proxies. `SCOPE` is safe in a
 * fragment or a link.
 *
 * ## Headers of requests
 *
 * - Every POST and DELETE except the login needs {@link CsrfHeader} with {@link Session.csrf}.
 * - Every POST needs `Content-Type: application/json` and a body of at most 2 MiB (the login: 4 KiB).
 * - A request that a timer makes, without any input of the person since the request before, sends {@link BackgroundHeader}
 *   with `1`. It does not count as use: without any other request the session ends after 30 minutes.
 *
 * ## Problems
 *
 * Every answer with a status of 400 or more is `application/problem+json` with the members of {@link ConsoleProblem}. 405 has
 * `Allow`; 429, 409 `alive` and 503 may have `Retry-After` (whole seconds).
 *
 * All times are ISO 8601 (`...At`) or milliseconds (`...Ms`), all by the gateway's clock: compare them with {@link Overview.nowAt}
 * or {@link Session.nowAt}, not with the browser's clock.
 */

/** The request header with the CSRF token. */
export type CsrfHeader = 'X-Console-Csrf';
/** The request header of requests that a timer makes. Its value is `1`. */
export type BackgroundHeader = 'X-Console-Background';

// Problems

/** The body of every answer with a status of 400 or more. */
export interface ConsoleProblem {
  /** `urn:oncegate:problem:admin_CODE` */
  type: string;
  /** What is wrong in general, in words for people. */
  title: string;
  status: number;
  /** One sentence about this request, for people. */
  detail: string;
  code: ProblemCode;
  /** With `alive`, `changed`: the record as it is now. */
  record?: RecordHeadView;
}

/** What went wrong: status and meaning of each code. */
export type ProblemCode =
  /** 400: the request, its query or its body is malformed. `detail` says what, and is written for the person. */
  | 'invalid'
  /** 401: there is no session, or it has ended. Show the login. */
  | 'not_logged_in'
  /** 401, to programs: there is no bearer token. The page never gets it. */
  | 'token_required'
  /** 401, to a login or a program: the token is wrong. */
  | 'wrong_token'
  /** 403: the session's token does not permit this: see {@link Session.may}. */
  | 'not_permitted'
  /** 403: the CSRF token is missing or wrong. Read `GET /console/session` again. */
  | 'csrf'
  /** 403: the request comes from another origin. */
  | 'foreign_origin'
  /** 404: there is no such path. */
  | 'not_found'
  /** 404: the console is off. */
  | 'console_off'
  /** 404: there is no record, and no audit trail, under this scope. */
  | 'absent'
  /** 404: the record has no stored body: it is not completed, or it is a tombstone. */
  | 'no_body'
  /** 405 */
  | 'method_not_allowed'
  /** 409: the owner of the record may still be working on it. Try again after `Retry-After`. */
  | 'alive'
  /** 409: the record is not in doubt under that execution any more. Show {@link ConsoleProblem.record}. */
  | 'changed'
  /** 413 */
  | 'too_large'
  /** 415: the body is not `application/json`. */
  | 'not_json'
  /** 421: this port does not serve the host in the Host header. */
  | 'wrong_host'
  /** 429, to a login or a program: too many wrong tokens. Try again after `Retry-After`. */
  | 'too_many_tries'
  /** 500 */
  | 'internal'
  /** 500: the record exists, and cannot be read: `detail` says why. */
  | 'unreadable'
  /** 503: the files of a page are missing. `detail` has the command that builds them. */
  | 'not_built'
  /** 503: neither the store nor a worker answered in time. A `resolve` may have been written: read the record again. */
  | 'unavailable';

// Session

export interface LoginRequest {
  /** `admin.token`, or one of `admin.tokens`. */
  token: string;
}

/**
 * `read`: everything but the rest; every session has it. `resolve`: resolve keys in doubt. `bodies`: see stored bodies and all
 * header values of stored responses.
 */
export type Permission = 'read' | 'resolve' | 'bodies';

export interface Session {
  /** The name of the token: `admin` for `admin.token`. It is kept as `by` in the audit trail. */
  name: string;
  may: Permission[];
  /** For {@link CsrfHeader}. */
  csrf: string;
  nowAt: string;
  /** When the session ends if it is not used: 30 minutes after the last request without {@link BackgroundHeader}. */
  idleEndsAt: string;
  /** When it ends in any case: 8 hours after the login. */
  endsAt: string;
}

// Overview

/** `failing`: it does not work. `warning`: it works, but something needs attention. */
export type PartState = 'ok' | 'warning' | 'failing';

export interface Overview {
  nowAt: string;
  /** The worst of the parts' states and of the doubts. */
  state: PartState;
  /** One sentence on how merchants are served now. */
  summary: string;
  parts: Part[];
  doubts: DoubtsSummary;
  build: {
    /** The package's version. */
    version: string;
    /** The version of Node. */
    node: string;
    /** The commit in hexadecimal digits, or `unknown`. */
    commit: string;
  };
  startedAt: string;
  uptimeMs: number;
  /** Processes that serve the port. */
  workers: number;
  /** `observe`: nothing is protected. Say so in a conspicuous place. */
  mode: 'protect' | 'observe';
  /** `sqlite` or `redis`. */
  store: string;
}

/** One condition of readiness. */
export interface Part {
  /** `store`, `upstream`, `keys`, `draining`, `workers`, `operations`, `certificates` or `configuration`; more may come. */
  name: string;
  /** For people: "Store", "Backend", "Secret keys", ... */
  title: string;
  state: PartState;
  /** What was found, in the words of /readyz. */
  detail: string;
  /** One sentence on what this means for merchants. */
  meaning: string;
  /** One line each. */
  warnings: string[];
}

/** What the store counts, for all gateways together. `null`: this is not known (yet). */
export interface DoubtsSummary {
  /** Keys in doubt, those with a dead owner included. */
  keys: number | null;
  /** Of them, keys that are executing without a living owner. */
  ownerGone: number | null;
  /** Age of the oldest key in doubt. 0 if there is none. */
  oldestMs: number | null;
  /** When that was counted last. */
  countedAt: string | null;
}

// Series

/** The live charts. A sample is taken every `everyMs`, only while a session is in use, and 15 minutes are kept. */
export interface Series {
  nowAt: string;
  /** Pass it as `since` next time. Opaque. */
  cursor: string;
  /** True: `points` are all that there are, and replace those that the page has. False: they follow them. */
  replaces: boolean;
  /** 2000 */
  everyMs: number;
  /** How long points are kept: 900,000 (15 minutes). */
  keptMs: number;
  /** Oldest first. Empty at first: a point needs two samples. */
  points: SeriesPoint[];
}

/**
 * What happened between two samples. There is no point for the time in which nobody looked: draw a gap if two points are further
 * apart than `2 × everyMs`.
 */
export interface SeriesPoint {
  /** Unix milliseconds of the later sample. */
  atMs: number;
  /** Requests per second, by what became of them. */
  perSecond: Record<OutcomeGroup, number>;
  /** The gateway's share of requests. `null`: there were none. */
  gateway: Quantiles | null;
  /** The backend's answers. `null`: there were none. */
  upstream: Quantiles | null;
  /** Requests in flight. */
  inFlight: number;
  /** Executions with an idempotency key that run now. */
  executing: number;
  /** Duplicates that wait for the first request. */
  waiting: number;
  /** Keys in doubt, as in {@link DoubtsSummary.keys}. */
  inDoubt: number | null;
}

/**
 * `executed`: sent to the backend, and answered with its answer (with and without an idempotency key). `replayed`: answered from
 * a record. `conflict`: the key runs, belongs to another request, or its result is not stored. `unknown`: the outcome cannot be
 * known (new and repeated answers). `refused`: not sent, because of the request (credentials, scope, malformed, rate).
 * `failed`: not sent, because of the gateway, the store or the backend. `gone`: the merchant disconnected first.
 */
export type OutcomeGroup = 'executed' | 'replayed' | 'conflict' | 'unknown' | 'refused' | 'failed' | 'gone';

/** Milliseconds, estimated from histogram buckets. */
export interface Quantiles {
  p50Ms: number;
  p95Ms: number;
  p99Ms: number;
}

// Records

/**
 * One page, at most 100 rows, in no particular order. There are more as long as `cursor` is set, even if this page is empty. With a
 * merchant, at most 199 rows of up to 2,000 that were searched.
 */
export interface DoubtsPage {
  nowAt: string;
  records: RecordHeadView[];
  cursor: string | null;
}

/** A record without its response. Of an unreadable record only `scope`, `state` and `reason` are known. */
export interface RecordHeadView {
  /** 64 hexadecimal digits. */
  scope: string;
  state: 'executing' | 'completed' | 'in_doubt' | 'unreadable';
  /** Why it cannot be read. */
  reason?: string;
  /** It is executing, and its owner shows no life: it counts as in doubt. */
  ownerGone?: boolean;
  /** It needs somebody who resolves it: in doubt, or its owner is gone. */
  inDoubt: boolean;
  /** How long its merchant has waited: the time since it started. Unset if it is not in doubt. */
  inDoubtMs?: number;
  /** Names this execution. Pass it to `resolve`. */
  execution?: string;
  merchant?: string;
  operation?: string;
  /** The idempotency key. */
  key?: string;
  /** Of the request that started the record: it is in the gateway's log and in the backend's, if that logs X-Request-Id. */
  requestId?: string;
  /** The gateway that started it. */
  gatewayId?: string;
  /** SHA-256 over method, target and body of the request, in hexadecimal digits. */
  fingerprint?: string;
  createdAt?: string;
  /** The last change of its state. */
  changedAt?: string;
  /** When the record is deleted at the earliest, if nothing changes. Unset if it is not known. */
  expiresAt?: string;
  /** It has been in doubt at some time. */
  wasInDoubt?: boolean;
  /** The encryption key of its response. Unset: the response is not encrypted. */
  encryptionKeyId?: string;
}

export interface FindRequest {
  /** The merchant code. */
  merchant: string;
  /** The idempotency key, as the merchant sent it. */
  key: string;
}

/** What is known of one scope. `record` is null if only the audit trail is left. */
export interface FoundRecord {
  nowAt: string;
  scope: string;
  record: RecordHeadView | null;
  /** Of a completed record. */
  response?: ResponseView;
  /** Oldest first. */
  timeline: TimelineEntry[];
}

export type ResponseView =
  /** It was executed, and its response is not stored. */
  { kind: 'tombstone' } | { kind: 'response'; status: number; headers: HeaderView[]; bodyBytes: number };

export interface HeaderView {
  name: string;
  /** Null: hidden, because it may hold a secret. Sessions with `bodies` see it with the body. */
  value: string | null;
}

export type TimelineEntry =
  /** The first request was received and its record made. */
  | { at: string; what: 'started'; requestId?: string; gatewayId?: string }
  /** The record became what it is: completed, or in doubt. Resolutions have entries of their own. */
  | { at: string; what: 'completed' | 'in_doubt' }
  /** Somebody, or a lookup, resolved it; or its body was purged. `status` 0: the backend's status is not known. */
  | {
      at: string;
      what: 'resolved' | 'purged';
      by: string;
      reason: string;
      from: 'executing' | 'completed' | 'in_doubt' | string;
      as: 'completed' | 'released' | 'purged';
      status?: number;
    };

/** Each answer with a body is logged by the gateway, with the session's name and the scope. */
export interface StoredBody {
  scope: string;
  status: number;
  /** With all values. */
  headers: HeaderView[];
  bodyBytes: number;
  /** Base64 of the body, or of its first MiB. Headers say its type, and whether it is compressed (`Content-Encoding`). */
  body: string;
  /** `body` is only the first MiB. */
  truncated: boolean;
}

export interface ResolveRecordRequest {
  /**
   * `completed`: the backend executed it; retries get the response below, or 409 `response_not_stored` without one.
   * `released`: the backend surely did not execute it; the next retry is sent and can pay again if this is wrong.
   */
  as: 'completed' | 'released';
  /** {@link RecordHeadView.execution} of the record that the person saw. */
  execution: string;
  /** Why: one line, 1 to 500 characters. Kept in the audit trail. */
  reason: string;
  /** Who, beside the session's name: one line, at most 60 characters. The audit trail says `PERSON (NAME)`. */
  person?: string;
  /** With `completed`: 200 to 599. Needed if there are headers or a body. */
  status?: number;
  headers?: Record<string, string | string[]>;
  /** Base64. */
  body?: string;
}

/** The record after the resolution. `record` in it is null after a release. */
export type ResolvedAnswer = FoundRecord;

// Configuration

/** The configuration in force, also after reloads. */
export interface Configuration {
  /** The configuration file. Null: there is none that is followed. */
  file: string | null;
  /** Since when this version is in force. */
  inForceSince: string;
  /** What differs between the file and the configuration in force: a refused version, options that need a restart. */
  warnings: string[];
  /** In the order of the file. */
  sections: ConfigurationSection[];
}

export interface ConfigurationSection {
  /** `listen`, `admin`, `upstream`, ... */
  name: string;
  /** Whether a change of the file is put in force while the gateway runs, or needs a restart. */
  takesEffect: 'reload' | 'restart';
  /** The section as YAML, all defaults included. Secrets are masked. */
  yaml: string;
}
