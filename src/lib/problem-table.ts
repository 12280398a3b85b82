/** Whether the request that gets this answer was executed. */
export type Executed = 'no' | 'perhaps' | 'yes';

/**
 * What a program does next. `same_key`: waits, and sends the same request again. `new_key`: corrects the request,
 * because nothing was executed under its key. `never`: asks a person.
 */
type Retry = 'same_key' | 'new_key' | 'never';

export type ProblemRow = [
  status: number,
  executed: Executed,
  retry: Retry,
  title: string,
  retryAfterS?: number,
];

/**
 * The gateway's own answers: code → status, whether the request that gets the answer was executed, what to do next, the title, and
 * the usual `Retry-After`. Codes are stable. docs/merchants.md explains them.
 *
 * `new_key` is only for requests without a usable key, and for those that every configuration refuses. Any other refusal may follow an
 * execution whose answer was lost.
 */
export const problems = {
  missing_credentials: [401, 'no', 'never', 'Credentials are required'],
  invalid_key: [401, 'no', 'never', 'The secret key is not valid'],
  insufficient_scope: [403, 'no', 'never', 'The secret key may not call this operation'],
  not_declared: [404, 'no', 'never', 'The request is not declared'],
  method_not_allowed: [405, 'no', 'new_key', 'The method is not allowed'],
  invalid_request: [400, 'no', 'never', 'The request is malformed'],
  invalid_target: [400, 'no', 'new_key', 'The request target is ambiguous'],
  idempotency_key_invalid: [400, 'no', 'new_key', 'The idempotency key is malformed'],
  idempotency_key_required: [400, 'no', 'new_key', 'This operation requires an idempotency key'],
  request_timeout: [408, 'no', 'same_key', 'The request body did not arrive in time'],
  body_too_large: [413, 'no', 'never', 'The request body is too large'],
  idempotency_key_reused: [422, 'no', 'never', 'The idempotency key belongs to another request'],
  rate_limited: [429, 'no', 'same_key', 'The merchant sends too many requests; nothing was sent', 1],
  request_in_flight: [409, 'perhaps', 'same_key', 'The first request with this key still runs', 1],
  outcome_unknown: [409, 'perhaps', 'never', 'It cannot be known whether the request was executed'],
  response_not_stored: [409, 'yes', 'never', 'The request was executed, but its result is not stored'],
  loop_detected: [508, 'no', 'never', 'The request has passed this gateway before; nothing was sent'],
  store_unavailable: [503, 'no', 'same_key', 'The idempotency store cannot be reached; nothing was sent', 1],
  upstream_unreachable: [502, 'no', 'same_key', 'The backend cannot be reached; nothing was sent'],
  overloaded: [503, 'no', 'same_key', 'The gateway is overloaded; nothing was sent', 1],
  shutting_down: [503, 'no', 'same_key', 'The gateway is shutting down; nothing was sent', 1],
  internal_error: [500, 'perhaps', 'same_key', 'The gateway failed'],
} satisfies Record<string, ProblemRow>;

export type ProblemCode = keyof typeof problems;

/** All codes: values of a label, and what documents and alerts must name. */
export const problemCodes = Object.keys(problems) as ProblemCode[];

/** The answers of the admin port, to programs and to the console: code → status and title. */
export const adminProblems = {
  invalid: [400, 'The request is malformed'],
  /** There is no session, or it has ended. The page shows the login. */
  not_logged_in: [401, 'There is no session'],
  /** Only programs get this code: they have sent no bearer token. */
  token_required: [401, 'The admin token is required'],
  wrong_token: [401, 'The token is wrong'],
  not_permitted: [403, 'The token does not permit this'],
  /** Only programs get this code: `admin.token` is not set, so records are off. */
  off: [403, 'Records are not served here'],
  foreign_origin: [403, 'The request comes from another origin'],
  not_found: [404, 'There is nothing at this path'],
  console_off: [404, 'The console is off'],
  /** There is neither a record nor an audit trail. */
  absent: [404, 'There is no such record'],
  no_body: [404, 'The record has no stored body'],
  method_not_allowed: [405, 'The path does not have this method'],
  /** The owner of the record may still be working on it. Try again after `Retry-After`. */
  alive: [409, 'The owner of the record is still alive'],
  /** The record is not in doubt under that execution any more. The answer has the record as it is now. */
  changed: [409, 'The record is not in doubt any more'],
  unreadable: [409, 'The record cannot be read'],
  /** The answer has some of the ids. */
  ambiguous: [409, 'The ids of several records begin so'],
  too_large: [413, 'The request is too large'],
  not_json: [415, 'The body must be JSON'],
  wrong_host: [421, 'This port does not serve that host'],
  too_many_tries: [429, 'Too many wrong tokens'],
  internal: [500, 'The gateway failed'],
  /** The store did not answer in time. A resolution may have been written: read the record again. */
  unavailable: [503, 'The idempotency store cannot be reached'],
} satisfies Record<string, [status: number, title: string]>;

export type AdminProblemCode = keyof typeof adminProblems;
