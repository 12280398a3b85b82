import type { ServerResponse } from 'node:http';
import { hasBody } from './context.ts';

/** The gateway's own answers: code → status and title. Codes are stable. docs/merchants.md explains them. */
const problems = {
  missing_credentials: { status: 401, title: 'A bearer secret key is required' },
  invalid_key: { status: 401, title: 'The secret key is not valid' },
  insufficient_scope: { status: 403, title: 'The secret key may not call this operation' },
  not_declared: { status: 404, title: 'The request is not declared' },
  invalid_request: { status: 400, title: 'The request is malformed' },
  invalid_target: { status: 400, title: 'The request target is ambiguous' },
  idempotency_key_invalid: { status: 400, title: 'The idempotency key is malformed' },
  idempotency_key_required: { status: 400, title: 'This operation requires an idempotency key' },
  request_timeout: { status: 408, title: 'The request body did not arrive in time' },
  body_too_large: { status: 413, title: 'The request body is too large' },
  idempotency_key_reused: { status: 422, title: 'The idempotency key belongs to another request' },
  rate_limited: { status: 429, title: 'The merchant sends too many requests; nothing was sent' },
  request_in_flight: { status: 409, title: 'The first request with this key still runs' },
  outcome_unknown: { status: 409, title: 'It cannot be known whether the request was executed' },
  response_not_stored: {
    status: 409,
    title: 'The request was executed, but its result is not stored',
  },
  store_unavailable: { status: 503, title: 'The idempotency store cannot be reached; nothing was sent' },
  upstream_unreachable: { status: 502, title: 'The backend cannot be reached; nothing was sent' },
  overloaded: { status: 503, title: 'The gateway is overloaded; nothing was sent' },
  shutting_down: { status: 503, title: 'The gateway is shutting down; nothing was sent' },
  internal_error: { status: 500, title: 'The gateway failed' },
} as const;

export type ProblemCode = keyof typeof problems;

/** An answer of the gateway itself, in the form of RFC 9457. */
export interface Problem {
  readonly code: ProblemCode;
  /** HTTP status. */
  readonly status: number;
  readonly title: string;
  /** One sentence for the merchant. Never contains a secret, a body or an account number. */
  readonly detail: string;
  /** Extra header fields, such as `Retry-After`. */
  readonly headers: Readonly<Record<string, string>>;
}

export const isProblem = (value: unknown): value is Problem =>
  typeof value === 'object' && value !== null && 'code' in value && 'detail' in value && 'title' in value;

export interface ProblemOptions {
  /** Overrides the usual status of the code; `outcome_unknown` also has 502 and 504. */
  status?: number;
  /** Sets `Retry-After`. Whole seconds. */
  retryAfterS?: number;
  headers?: Record<string, string>;
}

export function problem(code: ProblemCode, detail: string, options: ProblemOptions = {}): Problem {
  const { status, title } = problems[code];
  const headers = { ...options.headers };
  if (options.retryAfterS !== undefined) headers['Retry-After'] = String(options.retryAfterS);
  return { code, status: options.status ?? status, title, detail, headers };
}

/** For tests of documents and alerts. */
export const problemCodes = Object.keys(problems) as ProblemCode[];

/** Fits RFC 9457 and the payment API's envelope, because payment SDKs take a body without `error` for a success. */
export function problemBody(p: Problem, requestId: string): string {
  return JSON.stringify({
    success: false,
    type: `urn:oncegate:problem:${p.code}`,
    title: p.title,
    status: p.status,
    detail: p.detail,
    error: { code: p.code, message: p.detail, request_id: requestId },
  });
}

/** Names and values in turn. */
export function problemHeaders(p: Problem, requestId: string, bodyBytes: number): string[] {
  return [
    ...['Content-Type', 'application/problem+json', 'Content-Length', String(bodyBytes)],
    ...['Cache-Control', 'no-store', 'X-Request-Id', requestId],
    ...Object.entries(p.headers).flat(),
  ];
}

/** Answers with a problem, unless a response has begun or the merchant has disconnected. */
export function sendProblem(res: ServerResponse, p: Problem, requestId: string): void {
  if (res.headersSent || res.destroyed) return;
  const body = problemBody(p, requestId);
  const headers = problemHeaders(p, requestId, Buffer.byteLength(body));
  // Node would parse the rest of an unread body as the next request.
  if (hasBody(res.req) && !res.req.complete) res.shouldKeepAlive = false;
  res.writeHead(p.status, headers);
  res.end(body);
}
