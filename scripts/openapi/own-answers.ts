import { type ProblemCode, problem } from '../../src/kernel/problem.ts';

/** Which of the two endpoints can answer so. */
export type Endpoint = 'balance' | 'payments';

/** One answer of the gateway itself: a problem code under one of its statuses. */
export interface OwnAnswer {
  code: ProblemCode;
  status: number;
  title: string;
  /** An example of the member `detail`. */
  detail: string;
  /** When the merchant gets it, and what to do. */
  description: string;
  /** Response headers beside `X-Request-Id` and `Cache-Control`, by their names in `components.headers`. */
  headers: string[];
  endpoints: Endpoint[];
}

type More = Partial<Pick<OwnAnswer, 'status' | 'headers' | 'endpoints'>>;

const RETRY_AFTER = { headers: ['Retry-After'] };
const ORIGINAL = { headers: ['Idempotent-Original-Request-Id'] };
const CHALLENGE = { headers: ['WWW-Authenticate'] };
/** Only requests that an idempotency key protects, or should protect. */
const PAYMENTS: { endpoints: Endpoint[] } = { endpoints: ['payments'] };

function own(code: ProblemCode, description: string, detail: string, more: More = {}): OwnAnswer {
  const { status, title } = problem(code, detail);
  return {
    code,
    status,
    title,
    detail,
    description,
    headers: [],
    endpoints: ['balance', 'payments'],
    ...more,
  };
}

/** Every answer of the gateway itself. Status and title come from the gateway's code; a test provokes each of them. */
export const OWN_ANSWERS: readonly OwnAnswer[] = [
  own(
    'invalid_target',
    'The path can be read in two ways. Nothing was sent. Use the path exactly as documented.',
    'The request target has an empty segment.',
  ),
  own(
    'invalid_request',
    'The request is not well-formed HTTP. Nothing was sent.',
    'The request is not valid HTTP/1.1.',
  ),
  own(
    'idempotency_key_invalid',
    'The idempotency key is malformed, was sent twice, or the two headers disagree. Nothing was sent.',
    'The header x-service-idempotency is empty.',
    PAYMENTS,
  ),
  own(
    'idempotency_key_required',
    'The operator requires a key for this operation. Nothing was sent.',
    'The operation withdraw requires a header x-service-idempotency.',
    PAYMENTS,
  ),
  own(
    'missing_credentials',
    'There is no single bearer secret key. Nothing was sent.',
    'The header Authorization is missing.',
    CHALLENGE,
  ),
  own(
    'invalid_key',
    'The secret key is unknown, revoked, expired or not yet valid. Nothing was sent.',
    'The secret key is unknown, revoked or expired.',
    CHALLENGE,
  ),
  own(
    'insufficient_scope',
    'The secret key may not call this operation, or it is unclear which operation the request calls. Nothing was sent.',
    'The secret key may not call the operation withdraw.',
    CHALLENGE,
  ),
  own(
    'not_declared',
    'The operator allows documented requests only. Nothing was sent.',
    'No operation is declared for this request.',
    PAYMENTS,
  ),
  own(
    'request_timeout',
    'The body did not arrive in time. Nothing was sent: send the request again.',
    'The request body did not arrive within 10000 ms.',
  ),
  own(
    'request_in_flight',
    'The first request with this key still runs. Send the same request again, with the same key.',
    'The first request with this key still runs; retry with the same key.',
    { ...PAYMENTS, ...RETRY_AFTER },
  ),
  own(
    'outcome_unknown',
    'An earlier request with this key may have been executed, and it cannot be known. Do not pay by other means and do not use a new key. Ask again later, or contact us.',
    'The outcome of the first request has been unknown since 2026-01-31T12:00:00.000Z. It was not sent again.',
    { ...PAYMENTS, ...ORIGINAL },
  ),
  own(
    'response_not_stored',
    'The request was executed, but its response is not stored. Contact us.',
    'The request was executed, but its response was not stored.',
    { ...PAYMENTS, ...ORIGINAL },
  ),
  own(
    'body_too_large',
    'The body is too large. Nothing was sent.',
    'The request body is larger than 1048576 bytes.',
    PAYMENTS,
  ),
  own(
    'invalid_request',
    'The header `Expect` has another value than `100-continue`. Nothing was sent.',
    'The expectation is not supported.',
    {
      status: 417,
    },
  ),
  own(
    'idempotency_key_reused',
    'The key belongs to another request. This one was not sent. A new request needs a new key.',
    'This key was used for another request; a new request needs a new key.',
    PAYMENTS,
  ),
  own(
    'rate_limited',
    'The merchant sends too many requests, or too many at once. This request was not sent. Wait for `Retry-After`, then send it again with the same key.',
    'The merchant sends too many requests.',
    { headers: ['Retry-After', 'RateLimit', 'RateLimit-Policy'] },
  ),
  own(
    'invalid_request',
    'The header fields are too large, or too many. Nothing was sent.',
    'The header fields are too large or too many.',
    {
      status: 431,
    },
  ),
  own(
    'internal_error',
    'The gateway failed. The request may have been executed. Send it again with the same key.',
    'The gateway failed to answer the request.',
  ),
  own(
    'upstream_unreachable',
    'The backend cannot be reached. This request was not sent: send it again with the same key.',
    'The backend could not be reached; the request was not sent.',
  ),
  own(
    'outcome_unknown',
    'The backend broke off after the request was sent: it may have been executed. Do not pay by other means and do not use a new key. Ask again later, or contact us.',
    'The request may have been executed, but the backend sent no complete response.',
    { status: 502 },
  ),
  own(
    'upstream_unreachable',
    'The secret key cannot be checked at the moment. Nothing was sent: send the request again with the same key.',
    'The backend cannot check the secret key. The request was not sent; retry.',
    { status: 503, ...RETRY_AFTER },
  ),
  own(
    'store_unavailable',
    'The store of idempotency keys does not answer. This request was not sent: send it again with the same key.',
    'The request was not sent; retry with the same key.',
    { ...PAYMENTS, ...RETRY_AFTER },
  ),
  own(
    'overloaded',
    'Too many requests run at the moment. This request was not sent: send it again with the same key.',
    'The request was not sent; retry.',
    RETRY_AFTER,
  ),
  own(
    'shutting_down',
    'This gateway is being restarted. This request was not sent: send it again with the same key.',
    'The request was not sent; retry.',
    RETRY_AFTER,
  ),
  own(
    'outcome_unknown',
    'The backend did not answer in time: the request may have been executed. Do not pay by other means and do not use a new key. Ask again later, or contact us.',
    'The request may have been executed, but the backend sent no complete response.',
    { status: 504 },
  ),
  own(
    'invalid_request',
    'The request has another version than HTTP/1.1 or HTTP/1.0. Nothing was sent.',
    'Only HTTP/1.1 and HTTP/1.0 are supported.',
    {
      status: 505,
    },
  ),
];
