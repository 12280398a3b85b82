import type { ServerResponse } from 'node:http';
import { type Problem, problem } from '../lib/problem.ts';

/** The refusal of a request whose merchant the application does not know. A 401 must have a challenge (RFC 9110): its own, if it has set one. */
export const unauthenticated = (res: ServerResponse): Problem =>
  problem('missing_credentials', 'The application has authenticated no merchant. Nothing was executed.', {
    headers: { 'WWW-Authenticate': String(res.getHeader('WWW-Authenticate') ?? 'Bearer') },
  });

/** The answer when the handler is late. Its key is still being executed, so retries get 409 `request_in_flight` until it ends. */
export const handlerLate = (): Problem =>
  problem('outcome_unknown', 'The request is still being executed. Retry later with the same key.', {
    status: 504,
  });

/** The refusal of a request whose handler was not called, or has committed nothing. There is no backend that could not be reached. */
export function problemBefore(refusal: Problem): Problem {
  if (refusal.code !== 'upstream_unreachable') return refusal;
  return problem('overloaded', 'The request was not executed; retry with the same key.');
}

/**
 * What a function of the application has thrown, as an error. Express takes other values, such as undefined and `'route'`, for no error,
 * and would call the handler without protection.
 */
export const errorOf = (thrown: unknown): unknown =>
  typeof thrown === 'object' && thrown !== null
    ? thrown
    : new Error('oncegate: a function of the application has thrown a value that is no error', {
        cause: thrown,
      });

/** `startIn` has found that the key has another request. */
export class KeyTaken extends Error {
  override readonly name = 'KeyTaken';
  constructor() {
    super(
      'another request has the idempotency key: roll the transaction back. The merchant gets the answer of that request',
    );
  }
}

export const NOT_ASYNC =
  'idempotency: the function of a transaction on SQLite must not be asynchronous: statements of other requests would get into it';
